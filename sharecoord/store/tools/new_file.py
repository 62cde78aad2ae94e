"""A file that appears under its name whole and durable, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MODE = 0o600
"""For this user alone."""


@contextlib.contextmanager
def new_file(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Gives a file to write; when the block ends without an error, it is there as `path`.

    Where the file system allows it, the file has no name until then, so that not even kill -9
    leaves something behind.

    Args:
        path: Where it will be; its directory must exist.
        replace: Whether a file of this name may be replaced.

    Raises:
        FileExistsError: There is a file and `replace` is False.
        OSError: What else the file system says.
    """
    if not replace and path.exists():
        raise FileExistsError(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    part = f".{path.name}.{secrets.token_hex(4)}.part"
    try:
        descriptor, has_name = _make(directory, part)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                if not has_name:
                    has_name = replace
                    _link(file.fileno(), directory, part if replace else path.name)
            if has_name:
                _rename(directory, part, path.name, replace=replace)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=directory)
            raise
        os.fsync(directory)
    finally:
        os.close(directory)


def _make(directory: int, part: str) -> tuple[int, bool]:
    """A new file's descriptor, and whether it has a name (`part`)."""
    unnamed = getattr(os, "O_TMPFILE", None)
    if unnamed is not None:
        with contextlib.suppress(OSError):
            return os.open(".", unnamed | os.O_WRONLY, MODE, dir_fd=directory), False
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    return os.open(part, flags, MODE, dir_fd=directory), True


def _link(descriptor: int, directory: int, name: str) -> None:
    # With a directory's descriptor the link is followed to the open file, as linkat(2) has it.
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=directory, follow_symlinks=True)


def _rename(directory: int, part: str, name: str, *, replace: bool) -> None:
    if not replace:
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=directory, follow_symlinks=False)
            raise FileExistsError(name)
    os.replace(part, name, src_dir_fd=directory, dst_dir_fd=directory)
