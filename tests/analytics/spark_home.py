"""`spark-submit` with Spark's own Python part, and a Python in which pip has installed nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
"""As a distribution of Spark it has `python/lib` with pyspark and py4j as archives."""
TIMEOUT_S = 400


def bare_python(folder: Path) -> Path:
    """A Python that has nothing but the standard library."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def submit(
    folder: Path, program: str, *options: str, conf: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs a program with no package in sight but Spark's own archives and the one it ships.

    Args:
        folder: An empty one, where the program, its Python and the package go.
        program: Its text.
        options: Of the program.
        conf: Of Spark.
    """
    package = shutil.make_archive(str(folder / "sharecoord"), "zip", ROOT, "sharecoord")
    python = bare_python(folder / "python")
    job = folder / "work" / "job.py"
    job.parent.mkdir()
    job.write_text(program, encoding="utf-8")
    given = [f"--conf={key}={value}" for key, value in conf.items()]
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    return subprocess.run(
        [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--driver-memory", "1g"),
            # The JVM's own warnings are no part of a program's output.
            *("--driver-java-options", "-XX:+DisplayVMOutputToStderr"),
            *("--py-files", package, *given, str(job), *options),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=job.parent,
        env={**kept, "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": str(python)},
    )
