"""Builds the extension where there is a compiler; without one the package is pure Python.

One binary (abi3) serves CPython 3.11 and all later ones. Builds without the interpreter lock, and
PyPy, have no such interface: there the extension is built for the one version, or not at all.
"""

from __future__ import annotations

import sys
import sysconfig

from setuptools import Extension, setup

IS_STABLE = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "sharecoord_batches._native",
            ["sharecoord_batches/_native.c"],
            py_limited_api=IS_STABLE,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if IS_STABLE else {},
)
