"""Conversion between stored rows and memory: ranges of a claim, rows of a commit."""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.core.changes import InFlight, InFlightRow, PartitionCommit
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import RecordState
from sharecoord.core.window.history import History, history_from_text, history_to_text
from sharecoord.core.window.window import Keys, RangeState
from sharecoord.runtime.kernel.clock import RuntimeClock

LOCK_SPARE_MS = 10_000
"""Reserve for clocks that differ: an entry that a lock book has too long does no harm."""


def lock_left_max_ms(settings: PartitionSettings) -> int:
    """The longest time that a lock can last: recoveries add one duration at most."""
    return 2 * settings.lock_duration_ms + LOCK_SPARE_MS


def ranges_of(
    rows: InFlight, clock: RuntimeClock, *, lock_grace_ms: int
) -> tuple[Sequence[int], Sequence[int], list[RangeState]]:
    """Stored ranges with times of this process: first offsets, last offsets, states.

    Workers get `lock_grace_ms` to come back; all extensions of one lock together are at most one
    more lock duration (design 5, Time): what was used of it is taken from `granted_ms`, which is
    stored with the new deadline when the range changes. No row is rewritten.
    """
    grace_until_ms = clock.store_now_ms() + lock_grace_ms
    # What ranges have in common is one object: millions of them are made of a few.
    known = {
        number: _state_of(InFlightRow(0, 0, *stored), clock, grace_until_ms)
        for number, stored in {id(stored): stored for stored in rows.states}.items()
    }
    values = list(map(known.__getitem__, map(id, rows.states)))
    if any(value.keys for value in known.values()):
        # Keys belong to offsets: two ranges with the same hashes do not have the same keys.
        values = list(map(_with_keys_from, rows.firsts, values))
    return rows.firsts, rows.lasts, values


def _with_keys_from(first: int, value: RangeState) -> RangeState:
    return value if value.keys is None else value._replace(keys=Keys(first, value.keys.hashes))


def _state_of(row: InFlightRow, clock: RuntimeClock, grace_until_ms: int) -> RangeState:
    state = RecordState(row.state)
    deadline_ms = extended_ms = 0
    if state is RecordState.ACQUIRED:
        grace_ms = min(grace_until_ms, row.deadline_ms + row.granted_ms)
        extended_ms = max(0, grace_ms - row.deadline_ms)
        deadline_ms = clock.from_store(row.deadline_ms + extended_ms)
    return RangeState(
        state=state,
        delivery_count=row.delivery_count,
        hand_outs=row.hand_outs,
        member_id=row.member_id,
        lock_token=row.lock_token,
        deadline_ms=deadline_ms,
        granted_ms=row.granted_ms - extended_ms,
        available_at_ms=clock.from_store(row.available_at_ms),
        batch_base=row.batch_base,
        batch_size=row.batch_size,
        reason=row.reason,
        keys=None if row.key_hashes is None else Keys(row.first_offset, row.key_hashes),
        history=history_from_text(row.history, clock.store_offset_ms) if row.history else None,
    )


def commit_of(
    partition: SharePartition, partition_id: int, state_epoch: int, clock: RuntimeClock
) -> PartitionCommit:
    """The changes of a share-partition since the last call; takes them from the window."""
    window = partition.window
    dirty, window.dirty = window.dirty, {}
    deleted: list[int] = []
    upserted: list[InFlightRow] = []
    to_store = clock.to_store
    history: History | None = None
    text = ""  # of the last history that was met
    for first, entry in dirty.items():
        if entry is None:
            deleted.append(first)
            continue
        last, value = entry
        if value.history is not None and value.history is not history:
            history = value.history
            text = history_to_text(history, clock.store_offset_ms)
        upserted.append(
            InFlightRow(
                first,
                last,
                int(value.state),
                value.delivery_count,
                value.hand_outs,
                value.member_id,
                value.lock_token,
                to_store(value.deadline_ms),
                value.granted_ms,
                to_store(value.available_at_ms),
                value.batch_base,
                value.batch_size,
                value.reason,
                None if value.keys is None else value.keys.slice(first, last),
                None if value.history is None else text,
            )
        )
    return PartitionCommit(
        partition_id=partition_id,
        owner_epoch=partition.owner_epoch,
        state_epoch=state_epoch,
        head=partition.head,
        truncated_at=window.take_truncation(),
        deleted=deleted,
        upserted=upserted,
    )
