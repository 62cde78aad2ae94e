"""The folder that a result is written to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sharecoord.errors import InvalidConfigError

RESULTS: Final = Path("bench-results")


def output_directory(output: Path | None) -> Path:
    """Makes the folder of a result, so that a wrong path is refused before minutes of work.

    Args:
        output: A new or empty directory; None: `bench-results/<time>`.

    Raises:
        InvalidConfigError: The directory can not be made, or has files in it.
    """
    directory = output or RESULTS / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    if directory.exists() and not directory.is_dir():
        raise InvalidConfigError(f"output: {directory} is a file; name a directory")
    if directory.is_dir() and any(directory.iterdir()):
        raise InvalidConfigError(f"output: {directory} is not empty; name a new directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfigError(f"output: {directory} can not be made: {error}") from error
    return directory
