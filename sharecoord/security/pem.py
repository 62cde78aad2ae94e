"""Certificates and keys from files."""

from __future__ import annotations

from pathlib import Path

from sharecoord.errors import InvalidConfigError


def read_pem(setting: str, path: str) -> bytes:
    """What a file holds that a setting names.

    Raises:
        InvalidConfigError: It can not be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"{setting}: can not read {path!r}: {error.strerror}") from error
