"""The books of a share-partition: rows beside the states of its records.

They ride on the commits of the states, so the rows of a commit fit together. `DeadLetters`,
`Checkpoints` and `KeptPayloads` follow decisions; `Parking` and `PassedOver` say which offsets the
window does not hold itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sharecoord.core.changes import LoadedPartition, PartitionCommit
from sharecoord.core.partition import passed_over
from sharecoord.core.partition.decisions import Decision
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.spans import Spans
from sharecoord.runtime.partition.checkpoints import Checkpoints
from sharecoord.runtime.partition.claimed import Book, ClaimedPartition
from sharecoord.runtime.partition.dead_letters import DeadLetters
from sharecoord.runtime.partition.kept_payloads import KeptPayloads
from sharecoord.runtime.partition.parking import Parking


class PassedOver(Book):
    """Offsets that one incarnation of a share-partition passes over."""

    def __init__(self, ranges: Spans = ()) -> None:
        self.ranges = ranges
        """As `PartitionRow.passed_over`."""
        self._has_changed = False

    def cut(self, offset: int) -> bool:
        """The log was truncated at `offset`; returns whether that changes anything."""
        left = passed_over.cut(self.ranges, offset)
        is_changed = left != self.ranges
        self._has_changed |= is_changed
        self.ranges = left
        return is_changed

    def note(self, decision: Decision) -> None:
        """Does nothing: decisions leave these offsets alone."""

    def into(self, commit: PartitionCommit) -> None:
        """See `Book`."""
        if self._has_changed:
            self._has_changed, commit.passed_over = False, self.ranges

    def end(self) -> None:
        """Does nothing: the next incarnation begins with the stored offsets."""


class Books:
    """The books of one share-partition, in one incarnation after the other."""

    def __init__(self, part: ClaimedPartition, on_below_log_start: Callable[[int], None]) -> None:
        """All books are empty; `on_below_log_start` is for `Parking`."""
        self._part = part
        self.checkpoints = Checkpoints(part.budget)
        self.kept = KeptPayloads(part, lacking=lambda: self.letters.lacking)
        self.letters = DeadLetters(part, self.kept, self.checkpoints)
        self.parking = Parking(part, on_below_log_start)
        self.passed_over = PassedOver()

    def __iter__(self) -> Iterator[Book]:
        """The books in the order in which they note a decision: letters take checkpoints along."""
        return iter((self.letters, self.checkpoints, self.kept, self.passed_over))

    def begin(self, loaded: LoadedPartition, settings: PartitionSettings) -> None:
        """Takes over the stored rows; an incarnation is about to be served."""
        self.parking.begin(loaded)
        self.letters.begin(loaded, settings)
        self.checkpoints.begin(loaded)
        self.kept.begin(loaded)
        self.passed_over = PassedOver(loaded.row.passed_over)

    def note(self, decision: Decision) -> None:
        """Takes in a decision that is about to be carried out."""
        for book in self:
            book.note(decision)

    def into(self, commit: PartitionCommit) -> None:
        """Adds the changes since the last commit to the next one."""
        for book in self:
            book.into(commit)

    def end(self) -> None:
        """The incarnation has ended."""
        self.parking.end()
        for book in self:
            book.end()
        self.letters = DeadLetters(self._part, self.kept, self.checkpoints)
