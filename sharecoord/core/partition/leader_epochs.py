"""The leader epochs of the records that a share-partition has read (KIP-101, KIP-320).

The epoch of the last record before an offset names that record: a log that has another epoch there
was cut, and has other records since. So the epoch before the window's end is stored with the end,
and a read from there on shows it to Kafka.

Behind a batch whose epoch is known there may be offsets without records. In a gap between two
batches the later batch's epoch counts: the epoch may have begun within the gap, and Kafka, asked
about the earlier one, would answer that it ended before. Nothing is missed by that: a log that
still has a record of an epoch has everything that was before the epoch's first record. Behind the
last batch nothing is known, unless the reader says so.
"""

from __future__ import annotations

UNKNOWN = -1
"""The epoch of records whose leader is not known: nothing is compared."""


class LeaderEpochs:
    """Leader epochs by offset: of a few stretches, for a leader seldom changes."""

    def __init__(self, end_offset: int, epoch: int) -> None:
        """`epoch` is of the last record before `end_offset`, or `UNKNOWN`."""
        self._ends: list[tuple[int, int]] = [] if epoch < 0 else [(end_offset, epoch)]
        """Ends of stretches with their epochs, ascending."""

    def before(self, offset: int) -> int:
        """The epoch to show to Kafka at an offset; `UNKNOWN` where nothing that was read ends."""
        return next((epoch for end, epoch in self._ends if end >= offset), UNKNOWN)

    def read(self, end: int, epoch: int, *, window_end: int) -> None:
        """Records up to `end` were read, the last ones of this epoch; forgets what is passed."""
        if epoch < 0 or (self._ends and end <= self._ends[-1][0]):
            return
        if self._ends and self._ends[-1][1] == epoch:
            self._ends[-1] = end, epoch
        else:
            self._ends.append((end, epoch))
        while self._ends and self._ends[0][0] < window_end:
            del self._ends[0]

    def cut(self, offset: int) -> None:
        """Forgets what was read from an offset on."""
        known = self.before(offset)
        self._ends = [each for each in self._ends if each[0] < offset]
        if known >= 0:
            self._ends.append((offset, known))

    def cap(self, epoch: int) -> None:
        """Kafka's log has no higher epoch before what was read."""
        self._ends = [(end, min(known, epoch)) for end, known in self._ends]
