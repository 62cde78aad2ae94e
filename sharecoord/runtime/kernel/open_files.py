"""How many files this process may open, and who is refused before there are none left.

A connection of a member takes one. A group takes those of a reader: librdkafka has a socket for
each broker that it talks to, and a pipe for each that it knows. Groups on different partitions
share readers, so this is the most that one costs.
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
"""A lower limit is warned of at the start: it is reached by 400 groups, or 4,000 members."""

RESERVE_FILES: Final = 100
"""For the store, the event log, dead letters, probes and operators; a quarter of a low limit."""

LAST_FILES: Final = 8
"""With fewer left than these, what is under way can fail at any moment."""

READER_FILES: Final = 5
"""Of a reader without brokers; measured, as the next one."""

BROKER_FILES: Final = 3
"""Of a reader, for each broker: a pipe and a socket."""

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
    """What is open, and what was promised since that was counted."""

    def __init__(
        self, limit: int, *, brokers: int, count: Callable[[], int | None] = count_open
    ) -> None:
        """Counts for the first time.

        Args:
            limit: The soft limit.
            brokers: Of the Kafka cluster.
            count: Counts open files.
        """
        self.limit = limit
        self._reader_files = READER_FILES + BROKER_FILES * max(1, brokers)
        self._reserve = min(RESERVE_FILES, limit // 4)
        self._count = count
        self._open = self._joins = self._readers = 0
        self.look()

    def look(self) -> None:
        """Counts anew; once a second, and what was promised before is open by then."""
        try:
            self._open = self._count() or 0
        except OSError:
            # To count needs a file as well.
            self._open = self.limit
        self._joins = self._readers = 0

    @property
    def problem(self) -> str:
        """Why members can not be served, in words; "" = it is no matter of files."""
        if self.limit - self._open < LAST_FILES:
            return f"{self._open} of {self.limit} files are open: {FIX}"
        return ""

    def check_member(self, *, needs_reader: bool) -> None:
        """Whether one more member may come.

        Args:
            needs_reader: Whether its group has no members yet, so that nobody reads for it.

        Raises:
            LimitExceededError: It would not leave enough for what is served already.
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
        """Whether one more reader may be opened; its files count from now on.

        Half of the reserve is for readers of groups that have members already.
        """
        files = self._open + self._readers + self._reader_files
        if files > self.limit - self._reserve // 2:
            return False
        self._readers += self._reader_files
        return True
