"""Writes the rollups of a file of the event log; `eventlog.rollups` describes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sharecoord.eventlog.rollups import (
    ACCEPTED,
    ATTEMPTS,
    BESIDE,
    COLUMNS,
    FAILED,
    GRANTED,
    HANDED,
    HAPPENED,
    HELD_DIGITS,
    LAGS,
    LEFT_DIGITS,
    NEAR_MISS,
    OF_GROUP,
    OF_PARTITION,
    PAUSES,
    PLACES,
    ROLLUPS,
    RUNS,
    SETTLED,
    TROUBLES,
    WAITS,
    WINDOW_MS,
    Rollup,
    steps,
)
from sharecoord.eventlog.schema import EventKind, RangeEvent
from sharecoord.events.places import PART_SUFFIX, make_directories, rollup_path, sync
from sharecoord.events.schema import columns_as

ROWS_KEY: Final = b"sharecoord.rollup.rows"
"""Metadata of a file of rollups: the number of rows of the event log that it is made of."""

ROWS_AT_A_TIME: Final = 32_768
"""Rows that are looked at together; each takes about 1 KB meanwhile."""

WAITING_MAX: Final = 50_000
"""Rows of a table that are in memory before they are added up."""

_SCHEMA: Final = pa.schema([(name, kind.in_arrow(pa)) for name, kind in COLUMNS.items()])
_WINDOW_US: Final = WINDOW_MS * 1_000
Columns = dict[str, Any]


class RollupFile:
    """The rollups of a file that is being written; it is there, whole, after `finish`."""

    def __init__(self, part: Path) -> None:
        """Opens the file under the name that it has while it is written."""
        self._part = part
        self._rows = 0
        self._waiting = {rollup.table: _Waiting(rollup) for rollup in ROLLUPS}
        # Arrow's own schema would be larger than most columns.
        self._writer = pq.ParquetWriter(
            part, _SCHEMA, compression="zstd", write_page_checksum=True, store_schema=False
        )

    def add(self, rows: pa.Table) -> None:
        """Takes rows of the event log."""
        self._rows += rows.num_rows
        for first in range(0, rows.num_rows, ROWS_AT_A_TIME):
            part = rows.slice(first, ROWS_AT_A_TIME)
            for rollup in ROLLUPS:
                waiting = self._waiting[rollup.table]
                waiting.add(_MAKERS[rollup.table](part))
                if waiting.is_full():
                    self._write(waiting)

    def _write(self, waiting: _Waiting) -> None:
        made = waiting.take()
        if made.num_rows:
            count, columns = made.num_rows, columns_as(_SCHEMA, made)
            columns[0] = pa.repeat(waiting.rollup.table, count)
            # A row group is of one table, so that a reader skips the others.
            self._writer.write_table(pa.table(columns, schema=_SCHEMA), row_group_size=count)

    def finish(self, path: Path, root: Path) -> None:
        """Closes the file and names it `path`, durably; a file of that name is replaced."""
        for waiting in self._waiting.values():
            self._write(waiting)
        self._writer.add_key_value_metadata({ROWS_KEY: str(self._rows).encode()})
        self._writer.close()
        sync(self._part)
        make_directories(path.parent, root)
        self._part.replace(path)
        sync(path.parent)

    def discard(self) -> None:
        """Deletes the file unless it was finished."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._part.unlink(missing_ok=True)


class _Waiting:
    """Rows of a table that are added up before they are written."""

    def __init__(self, rollup: Rollup) -> None:
        self.rollup = rollup
        self._adds_up = bool(rollup.sums)
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, made: pa.Table) -> None:
        self._parts.append(made)
        self._rows += made.num_rows

    def is_full(self) -> bool:
        """Whether the rows are to be written: adding them up leaves too many."""
        if self._rows < WAITING_MAX:
            return False
        if self._adds_up:
            made = self.take()
            self.add(made)
        return self._rows >= WAITING_MAX // 2

    def take(self) -> pa.Table:
        """Returns all rows, added up, and forgets them."""
        parts, self._parts, self._rows = self._parts, [], 0
        made = pa.concat_tables(parts) if parts else pa.table({})
        return _summed(made, self.rollup) if self._adds_up and len(parts) > 1 else made


def _summed(rows: pa.Table, rollup: Rollup) -> pa.Table:
    """The rows with equal keys added up to one row each."""
    wanted = [
        *((name, "sum") for name in rollup.sums),
        *((name, "min") for name in rollup.least),
        *((name, "max") for name in rollup.most),
    ]
    found = _aggregated(rows, rollup.keys, wanted)
    for order, how, names in (
        ("first_us", "first", rollup.first),
        ("last_us", "last", rollup.last),
    ):
        if names:
            options = pc.ScalarAggregateOptions(skip_nulls=False)
            ordered = [(name, how, options) for name in names]
            beside = _aggregated(rows.sort_by(order), rollup.keys, ordered)
            # The two tables have their keys in different orders.
            found = _beside(found, beside, rollup.keys)
    return found.select(list(rollup.columns))


def _aggregated(rows: pa.Table, keys: Sequence[str], wanted: Sequence[tuple[Any, ...]]) -> pa.Table:
    grouped = rows.group_by(list(keys), use_threads=False).aggregate(list(wanted))
    names = {f"{name}_{how}": name for name, how, *_ in wanted}
    return grouped.rename_columns([names.get(name, name) for name in grouped.column_names])


def _beside(left: pa.Table, right: pa.Table, keys: Sequence[str]) -> pa.Table:
    order = [(key, "ascending") for key in keys]
    left, right = left.sort_by(order), right.sort_by(order)
    for name in right.column_names:
        if name not in keys:
            left = left.append_column(name, right.column(name))
    return left


# -- tables ---------------------------------------------------------------------------------------


def _is(column: Any, *values: str) -> Any:
    """Whether a value is one of these; null is none of them."""
    return pc.is_in(column, value_set=pa.array(values, pa.string()))


def _when(condition: Any, value: Any) -> Any:
    """The value where the condition holds; null elsewhere."""
    return pc.if_else(condition, value, pa.scalar(None, value.type))


def _or_zero(value: Any) -> Any:
    return pc.fill_null(value, 0)


def _int(condition: Any) -> Any:
    return pc.cast(condition, pa.int64())


def _window(rows: pa.Table) -> Any:
    return pc.divide(pc.cast(rows["time"], pa.int64()), _WINDOW_US)


def _significant(values: Any, digits: int) -> Any:
    """As `sharecoord.eventlog.rollups.steps` says."""
    length = pc.utf8_length(pc.cast(values, pa.string()))
    step = pc.take(pa.array(steps(digits), pa.int64()), pc.subtract(length, 1))
    return pc.add(pc.multiply(pc.divide(values, step), step), pc.shift_right(step, 1))


def _made(rollup: Rollup, columns: Columns) -> pa.Table:
    return _summed(pa.table(columns), rollup)


def _places(rows: pa.Table) -> pa.Table:
    kind, sequence = rows["kind"], rows["change_sequence"]
    # A sample knows the newest change before it.
    first = pc.if_else(_is(kind, EventKind.RANGE.value), sequence, pc.add(sequence, 1))
    return _made(
        PLACES,
        {
            **{name: rows[name] for name in PLACES.keys},
            "events": pa.repeat(1, rows.num_rows),
            "lost": _when(_is(kind, EventKind.LOST.value), rows["records"]),
            "first": first,
            "last": sequence,
            "schema_version": rows["schema_version"],
        },
    )


def _runs(rows: pa.Table) -> pa.Table:
    is_range = _is(rows["kind"], EventKind.RANGE.value)
    rows = rows.filter(pc.and_(is_range, pc.is_valid(rows["change_sequence"]))).combine_chunks()
    order = pc.sort_indices(
        pa.table({"place": _numbered(rows, PLACES.keys), "sequence": rows["change_sequence"]}),
        sort_keys=[("place", "ascending"), ("sequence", "ascending")],
    )
    rows = rows.take(order).combine_chunks()
    place, sequence = _numbered(rows, PLACES.keys), rows["change_sequence"].combine_chunks()
    goes_on = pc.and_(
        pc.equal(place[1:], place[:-1]), pc.less_equal(pc.subtract(sequence[1:], sequence[:-1]), 1)
    )
    ends = pc.invert(goes_on)
    edge = pa.array([True] if rows.num_rows else [], pa.bool_())
    begins, ends = (pa.concat_arrays(pair) for pair in ([edge, ends], [ends, edge]))
    found = rows.filter(begins).select(list(PLACES.keys))
    found = found.append_column("run_first", sequence.filter(begins))
    return found.append_column("run_last", sequence.filter(ends))


def _numbered(rows: pa.Table, names: Sequence[str]) -> Any:
    """A number for each row; the same when all of these columns are the same."""
    found = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for name in names:
        column = pc.dictionary_encode(rows[name], null_encoding="encode").combine_chunks()
        found = pc.add(pc.multiply(found, len(column.dictionary)), column.indices)
    return found


def _happened(rows: pa.Table) -> pa.Table:
    event = rows["event"]
    named = _is(event, *FAILED, *OF_PARTITION, *OF_GROUP)
    of_member = pc.and_(_is(event, *PAUSES), pc.is_valid(rows["member_id"]))
    return _made(
        HAPPENED,
        {
            **{name: rows[name] for name in ("group_id", "topic", "partition", "records")},
            "window": _window(rows),
            "event": _when(pc.and_not(named, of_member), event),
            "events": pa.repeat(1, rows.num_rows),
            "age_ms": _when(_is(event, RangeEvent.ACQUIRED.value), rows["age_ms"]),
        },
    )


def _attempts(rows: pa.Table) -> pa.Table:
    holds = pc.fill_null(
        pc.and_(_is(rows["kind"], EventKind.MEMBER.value), pc.greater(rows["held"], 0)),
        fill_value=False,
    )
    wanted = _is(rows["event"], ACCEPTED, *FAILED, *BESIDE, *GRANTED)
    rows = rows.filter(pc.or_(wanted, holds)).append_column(
        "holds", holds.filter(pc.or_(wanted, holds))
    )
    event, held_ms, left_ms = rows["event"], rows["held_ms"], rows["lock_left_ms"]
    is_granted, ends = _is(event, *GRANTED), _is(event, ACCEPTED, *FAILED)
    # In floating-point numbers, as Spark does.
    lock_ms = pc.cast(pc.add(held_ms, left_ms), pa.float64())
    near = pc.less(pc.cast(left_ms, pa.float64()), pc.multiply(lock_ms, NEAR_MISS))
    left_ms = _significant(pc.max_element_wise(left_ms, 0), LEFT_DIGITS)
    records, work_us = _or_zero(rows["records"]), rows["work_us"]
    return _made(
        ATTEMPTS,
        {
            **{name: rows[name] for name in ("group_id", "topic", "member_id", "client_id")},
            "event": event,
            "state": _when(pc.invert(is_granted), rows["state"]),
            "delivery_count": _when(pc.invert(is_granted), rows["delivery_count"]),
            "lock_ms": _when(is_granted, rows["lock_ms"]),
            "held_ms": _when(ends, _significant(held_ms, HELD_DIGITS)),
            "left_ms": _when(pc.fill_null(pc.and_(ends, near), fill_value=False), left_ms),
            "ranges": pa.repeat(1, rows.num_rows),
            "records": records,
            "work_us": _or_zero(work_us),
            "worked": pc.if_else(pc.is_valid(work_us), records, 0),
            "samples": _int(rows["holds"]),
            "holding": pc.if_else(rows["holds"], _or_zero(rows["held"]), 0),
        },
    )


def _waits(rows: pa.Table) -> pa.Table:
    wanted = _is(rows["event"], RangeEvent.ACQUIRED.value, *SETTLED)
    rows = rows.filter(pc.and_(wanted, pc.is_valid(rows["member_id"])))
    is_acquired = _is(rows["event"], RangeEvent.ACQUIRED.value)
    settled = pc.and_(pc.invert(is_acquired), pc.is_valid(rows["held_ms"]))
    records, held_ms = _or_zero(rows["records"]), pc.cast(rows["held_ms"], pa.float64())
    held = pc.multiply(held_ms, pc.cast(records, pa.float64()))
    return _made(
        WAITS,
        {
            **{name: rows[name] for name in ("group_id", "member_id", "client_id")},
            "dwell_ms": _when(is_acquired, _significant(rows["available_ms"], HELD_DIGITS)),
            "acquired": pc.if_else(is_acquired, records, 0),
            "settled": pc.if_else(settled, records, 0),
            "held_record_ms": pc.if_else(settled, held, 0.0),
        },
    )


def _handed(rows: pa.Table) -> pa.Table:
    is_acquired = _is(rows["event"], RangeEvent.ACQUIRED.value)
    rows = rows.filter(pc.and_(is_acquired, pc.is_valid(rows["member_id"])))
    names = ("group_id", "topic", "partition", "member_id", "records")
    return _made(HANDED, {**{name: rows[name] for name in names}, "window": _window(rows)})


def _lags(rows: pa.Table) -> pa.Table:
    is_partition = _is(rows["kind"], EventKind.PARTITION.value)
    rows = rows.filter(pc.and_(is_partition, pc.is_valid(rows["lag"])))
    us, oldest_us = (pc.cast(rows[name], pa.int64()) for name in ("time", "oldest_time"))
    log_end, lag = rows["log_end_offset"], rows["lag"]
    unread = pc.max_element_wise(pc.subtract(log_end, rows["end_offset"]), 0)
    waiting = pc.min_element_wise(pc.add(unread, _or_zero(rows["due"])), lag)
    age_ms = pc.subtract(pc.divide(us, 1_000), pc.divide(oldest_us, 1_000))
    age_ms = _when(pc.is_valid(oldest_us), pc.max_element_wise(age_ms, 0))
    behind_ms = pc.if_else(pc.equal(lag, 0), 0, age_ms)
    finished = pc.subtract(log_end, lag)
    return _made(
        LAGS,
        {
            **{name: rows[name] for name in ("group_id", "topic", "partition")},
            "window": _window(rows),
            "behind_unknown": _int(pc.is_null(behind_ms)),
            "first_us": us,
            "first_log_end_offset": log_end,
            "first_finished": finished,
            "last_us": us,
            "log_end_offset": log_end,
            "finished": finished,
            "start_offset": rows["start_offset"],
            "lag": lag,
            "waiting": waiting,
            "behind_ms": behind_ms,
            "lag_max": lag,
            "waiting_max": waiting,
            "behind_max_ms": behind_ms,
        },
    )


def _troubles(rows: pa.Table) -> pa.Table:
    return rows.filter(_is(rows["event"], *FAILED, *BESIDE)).select(list(TROUBLES.columns))


_MAKERS: Final[dict[str, Callable[[pa.Table], pa.Table]]] = {
    PLACES.table: _places,
    RUNS.table: _runs,
    HAPPENED.table: _happened,
    ATTEMPTS.table: _attempts,
    WAITS.table: _waits,
    HANDED.table: _handed,
    LAGS.table: _lags,
    TROUBLES.table: _troubles,
}


# -- files that are there -------------------------------------------------------------------------


def roll_up(path: Path, root: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Makes the rollups of an existing file of the event log.

    Args:
        path: The file.
        root: The folder of the event log.
        batches: The file's rows, with all columns of this release.

    Raises:
        OSError: No room, or no access; the file has no rollups.
    """
    place = rollup_path(path)
    make_directories(place.parent, root)
    file = RollupFile(place.with_name(f"_{place.name}{PART_SUFFIX}"))
    try:
        for batch in batches:
            file.add(pa.Table.from_batches([batch]))
        file.finish(place, root)
    finally:
        file.discard()


def rows_of(path: Path) -> int | None:
    """The number of rows of the event log that a file of rollups is made of; None: not sound."""
    try:
        with pq.ParquetFile(path) as file:
            return int((file.metadata.metadata or {})[ROWS_KEY])
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
