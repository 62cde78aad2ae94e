"""Judges what is stored of payloads: whose, for how long, and that retention takes none of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sharecoord.core.changes import InFlightRow, PartitionCommit
from sharecoord.core.states import ArchiveReason, RecordState
from tests.simulation.judges.shadow import RecordLog, Shadow, name_of, text_of

__all__ = ["KeptJudge"]


class KeptJudge:
    """Of all share-partitions.

    Args:
        log: What was ever written.
        broken: Hears of each promise that was not kept.
    """

    def __init__(self, log: RecordLog, broken: Callable[[str], None]) -> None:
        self._log = log
        self._broken = broken
        self.saved = 0
        """Records that were finished in good order though their log had them no more."""

    def needs_log(self, shadow: Shadow, offset: int) -> bool:
        """Whether a record may end because its log has it no more."""
        return offset not in shadow.kept or shadow.key.topic_id in self._log.ended

    def committed(
        self,
        shadow: Shadow,
        part: PartitionCommit,
        before: Mapping[int, InFlightRow],
        after: Mapping[int, InFlightRow],
    ) -> None:
        """A commit of one share-partition; its ranges are in the shadow already."""
        for offset in shadow.kept & after.keys():
            row = after[offset]
            if row.state == RecordState.ARCHIVED and row.reason == ArchiveReason.LOG_START:
                self._broken(f"{name_of(shadow)}@{offset}: {text_of(row)}, and it is kept")
        for offset in part.kept_done:
            ended = offset in before and offset not in after
            self.saved += ended and not self._log.holds(shadow.key, offset)
        shadow.kept -= set(part.kept_done)
        written = self._log.written.get((shadow.key.topic_id, shadow.key.partition), {})
        for payload in part.kept:
            shadow.kept.add(payload.offset)
            if payload.value not in written.get(payload.offset, ()):
                self._broken(f"{name_of(shadow)}@{payload.offset}: another's payload is kept")
        for offset in shadow.kept & (before.keys() | {payload.offset for payload in part.kept}):
            left = after.get(offset) or shadow.row_at(offset)
            if left is None or left.state == RecordState.ARCHIVED:
                self._broken(f"{name_of(shadow)}@{offset}: kept, and it is finished")
