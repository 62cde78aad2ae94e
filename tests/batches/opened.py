"""The two openers of records, and what comes of them: a result, or an error and its text."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from sharecoord_batches import opener, records
from sharecoord_batches.errors import BatchError


def native() -> ModuleType:
    """The extension. It may be missing on a machine without a compiler, and nowhere else."""
    if not opener.HAS_NATIVE and "CI" not in os.environ:
        pytest.skip("the extension was not built (no compiler when `make venv` ran)")
    from sharecoord_batches import _native

    return _native


def outcome(call: Callable[..., Any], *args: object) -> object:
    """What a call returns, or how it refuses."""
    try:
        return call(*args)
    except BatchError as error:
        return type(error), str(error)


def same(name: str, *args: object) -> object:
    """What both openers say, which is the same."""
    twin = outcome(getattr(records, name), *args)
    assert outcome(getattr(native(), name), *args) == twin
    return twin
