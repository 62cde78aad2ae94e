"""The files that this process may open, and refusals before none is left.

A connection of a member takes one file. A group takes those of a reader: librdkafka has a socket
for each broker that it talks to, and a pipe for each that it knows. Groups on different partitions
share readers, so a group takes no more than that.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from sharecoord.errors import LimitExceededError

log = structlog.get_logger(__name__)

WANTED_FILES: Final = 1 << 20
"""The soft limit is raised to this, or to the hard limit below it. Some containers have a hard
limit of a thousand times as much, and a program that closes all files it could have takes minutes.
"""

FEW_FILES: Final = 4_096
"""A lower limit brings a warning at the start: 400 groups or 4,000 members reach it."""

RESERVE_FILES: Final = 100
"""Files for the store, the event log, dead letters, probes, operators; a quarter of a low limit."""

LAST_FILES: Final = 8
"""With fewer files left, any work under way can fail."""

READER_FILES: Final = 5
"""Files of a reader without brokers; measured, as the next constant."""

BROKER_FILES: Final = 3
"""Files of a reader for each broker, its pipe and its socket."""

RETRY_AFTER_MS: Final = 2_000

FIX: Final = (
    "raise the limit (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of Docker) and start "
    "the coordinator again, or start another one"
)

_DESCRIPTORS: Final = Path("/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd")


def raise_limit() -> int:
    """Raises the soft limit as far as it may be; returns it, and warns when it is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            log.warning("limit of open files not raised", limit=soft, why=str(error))
    limit = WANTED_FILES if soft == resource.RLIM_INFINITY else soft
    if limit < FEW_FILES:
        log.warning("few open files", limit=limit, fix=FIX)
    return limit


def count_open() -> int | None:
    """How many files are open; None where the system does not say."""
    try:
        # Linux says it here since 6.2; before, the entries have to be counted.
        return _DESCRIPTORS.stat().st_size or sum(1 for _ in _DESCRIPTORS.iterdir())
    except FileNotFoundError:
        return None


class OpenFiles:
    """The open files, and those promised since they were counted."""

    def __init__(
        self, limit: int, *, brokers: int, count: Callable[[], int | None] = count_open
    ) -> None:
        """Counts for the first time; `limit` is the soft limit, `brokers` are Kafka's."""
        self.limit = limit
        self._reader_files = READER_FILES + BROKER_FILES * max(1, brokers)
        self._reserve = min(RESERVE_FILES, limit // 4)
        self._count = count
        self._open = self._joins = self._readers = 0
        self.look()

    def look(self) -> None:
        """Counts anew, once a second; promised files are open by then."""
        try:
            self._open = self._count() or 0
        except OSError:
            # Counting needs a file as well.
            self._open = self.limit
        self._joins = self._readers = 0

    @property
    def problem(self) -> str:
        """Why members can not be served for want of files; "" = they can."""
        if self.limit - self._open < LAST_FILES:
            return f"{self._open} of {self.limit} files are open: {FIX}"
        return ""

    def check_member(self, *, needs_reader: bool) -> None:
        """Promises files to one more member, and to a reader if its group has no members yet.

        Raises:
            LimitExceededError: Too few would be left for the members that are served already.
        """
        files = 1 + self._reader_files * needs_reader
        promised = max(self._joins, self._readers)
        if self._open + promised + files > self.limit - self._reserve:
            what = "a group without members" if needs_reader else "a member"
            raise LimitExceededError(
                f"open files: {self._open + promised} of {self.limit}, of which {self._reserve} "
                f"are kept for what is served already, and {what} needs {files} more: {FIX}",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._joins += files

    def may_read(self) -> bool:
        """Promises files to one more reader, or returns False.

        Half of the reserve is for readers of groups that have members already.
        """
        files = self._open + self._readers + self._reader_files
        if files > self.limit - self._reserve // 2:
            return False
        self._readers += self._reader_files
        return True
