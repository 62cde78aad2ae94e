"""The lock that lets one process use a SQLite store, and says who that is.

`flock` belongs to the open file: the kernel gives it back however the process ends. A child that is
forked without exec would inherit it, so child processes are to be started by exec.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sharecoord.errors import InvalidConfigError, StoreInUseError


class FileLock:
    """An exclusive lock on `<database>.lock`; the file stays, its text names the holder."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        self._database = database
        self._descriptor: int | None = None

    def acquire(self, *, coordinator_id: str) -> None:
        """Takes the lock or fails at once.

        Raises:
            StoreInUseError: Another process, which is named, has it.
            InvalidConfigError: The lock file cannot be made.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidConfigError(
                f"store: cannot make {self.path}: {error.strerror}. Give a path that this user "
                "can write to"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode("utf-8", "replace").strip()
            os.close(descriptor)
            raise StoreInUseError(
                f"{self._database} is in use by {holder or 'another process'}. Stop that process "
                "first, or give this one another --store; several coordinators on one store are "
                "a fleet and need PostgreSQL or MySQL"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise InvalidConfigError(
                f"store: the file system of {self.path} cannot lock files: {error.strerror}. "
                "Put the store on a local disk"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}, coordinator {coordinator_id}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Gives the lock back; no effect without it."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None
