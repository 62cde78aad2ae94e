"""The answer to one request that reaches several share-partitions."""

from __future__ import annotations

from collections.abc import Callable

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import PartitionResult
from sharecoord.errors import SharecoordError


class Collector:
    """Gathers the answers of all partitions of one request; then answers once."""

    __slots__ = ("_on_done", "_open", "_results", "_sealed")

    def __init__(self, on_done: Callable[[list[PartitionResult]], None]) -> None:
        self._on_done = on_done
        self._open = 0
        self._sealed = False
        self._results: list[PartitionResult] = []

    def expect(self) -> None:
        """Waits for the answer of another partition."""
        self._open += 1

    def add(self, result: PartitionResult) -> None:
        """Takes the answer of a partition."""
        self._open -= 1
        self._results.append(result)
        self._finish()

    def refuse(self, key: PartitionKey, error: SharecoordError | None) -> None:
        """Takes the refusal of a partition: nothing was done."""
        self.expect()
        self.add(PartitionResult(key, error=error))

    def seal(self) -> None:
        """Answers once all partitions have: no more are asked."""
        self._sealed = True
        self._finish()

    def _finish(self) -> None:
        if self._sealed and not self._open:
            self._on_done(self._results)
