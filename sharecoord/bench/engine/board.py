"""A file that all processes of a trial map into memory: their progress, and the order to stop.

Writing a number there costs next to nothing, and no process waits for another.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

_WORD_BYTES: Final = 8
_STOP: Final = 0
_READY: Final = 1


class Board:
    """Numbers of a trial: an order to stop, processes that are ready, what each consumer handled.

    Behind them one byte for each record of the topic: 1 when it was handled.
    """

    def __init__(self, path: Path, *, consumers: int, processes: int, records: int) -> None:
        """Maps a file that `create` made."""
        self._consumers = consumers
        self._processes = processes
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        words = _words(consumers, processes)
        self._all = memoryview(self._map)
        self._words = self._all[: words * _WORD_BYTES].cast("q")
        self.seen = self._all[words * _WORD_BYTES : words * _WORD_BYTES + records]

    @classmethod
    def create(cls, path: Path, *, consumers: int, processes: int, records: int) -> Board:
        """Makes the file, all zeros, and maps it; arguments as of the constructor."""
        with path.open("wb") as file:
            file.truncate(_words(consumers, processes) * _WORD_BYTES + records)
        return cls(path, consumers=consumers, processes=processes, records=records)

    def close(self) -> None:
        """Lets go of the file."""
        for view in (self.seen, self._words, self._all):
            view.release()
        self._map.close()

    def stopped(self) -> bool:
        """Whether consumers are to end."""
        return self._words[_STOP] != 0

    def stop(self) -> None:
        """Tells all consumers to end."""
        self._words[_STOP] = 1

    def set_ready(self, process: int, began_ns: int) -> None:
        """Says that the consumers of a process are subscribed, and when it began to make them."""
        self._words[_READY + process] = began_ns

    @property
    def all_ready(self) -> bool:
        """Whether every process is ready."""
        return all(self._words[_READY : _READY + self._processes])

    @property
    def began_ns(self) -> int:
        """The earliest moment at which a process that is ready began to make its consumers."""
        return min(filter(None, self._words[_READY : _READY + self._processes]), default=0)

    def set_count(self, consumer: int, records: int) -> None:
        """Says how many records a consumer has handled."""
        self._words[_READY + self._processes + consumer] = records

    def set_end(self, consumer: int, offset: int) -> None:
        """Says the first offset behind all records that a consumer was given."""
        at = _READY + self._processes + self._consumers + consumer
        self._words[at] = max(self._words[at], offset)

    @property
    def end(self) -> int:
        """The greatest end of all consumers; 0 when none says it."""
        return max(self._words[_READY + self._processes + self._consumers :])

    @property
    def total(self) -> int:
        """Records that were handled, repeated ones too."""
        begin = _READY + self._processes
        return sum(self._words[begin : begin + self._consumers])

    def distinct(self, first: int = 0, end: int | None = None) -> int:
        """How many of the records from `first` to before `end` were handled at least once."""
        return bytes(self.seen[first:end]).count(1)


def _words(consumers: int, processes: int) -> int:
    return _READY + processes + 2 * consumers
