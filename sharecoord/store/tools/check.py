"""Check of a store: whether a coordinator can work with every row. Coordinators may go on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, Table

from sharecoord.config.group import GROUP_SETTINGS
from sharecoord.core.fleet.belonging import SECRET_BYTES
from sharecoord.core.letters.lanes import MarkKind
from sharecoord.core.limits import CHECKPOINT_BYTES_MAX
from sharecoord.core.states import RecordState
from sharecoord.core.window.history import history_from_text
from sharecoord.errors import InvalidConfigError
from sharecoord.store.book_entries import CHECKPOINT, KEPT_PAYLOAD, KINDS, WINDOW_KINDS
from sharecoord.store.hot.partitions import EPOCH_FLOOR, MEMBER_EPOCH_FLOOR
from sharecoord.store.row_codec import (
    decode_headers,
    decode_passed_over,
    decode_pauses,
    key_digest,
)
from sharecoord.store.tables import (
    ALEMBIC_VERSION,
    BLOCKED_KEY,
    BOOK_ENTRY,
    COORDINATOR,
    HEAD_REVISION,
    IN_FLIGHT,
    LETTER_MARK,
    MEMBER,
    SHARE_GROUP,
    SHARE_PARTITION,
    STORE_META,
)
from sharecoord.store.tools.access import StoreAccess, StoreFacts
from sharecoord.store.tools.raw_rows import Row, name_of, problems_of, stored_rows

FINDINGS_MAX: Final = 1_000
"""Most findings that a report lists; the others are counted."""

DELIVERY_COUNT_MAX: Final = 1_000
"""The highest `share.delivery.count.limit`."""

LEASE_MAX_MS: Final = 10 * 60_000
"""The highest `coordinator.lease.timeout.ms`."""

_SECRET: Final = re.compile(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", re.ASCII)

_STORED_STATES = {
    int(state)
    for state in (
        RecordState.AVAILABLE,
        RecordState.ACQUIRED,
        RecordState.ARCHIVING,
        RecordState.ARCHIVED,
    )
}

_MEND = "mend the row with UPDATE, or restore a backup"
_NEW_ROW = "with that coordinator stopped, delete the row; it writes a new one at its start"

_ENTRY_FIXES = {
    CHECKPOINT: "delete the row; its record is worked on anew",
    KEPT_PAYLOAD: "delete the row; its record is read from its topic",
}

_HEAD = ("start_offset", "end_offset", "finished_count", "end_leader_epoch")

Values = Mapping[str, Any]
"""A row by column."""

Look = Callable[[Values], Iterator[tuple[str, str]]]
"""Finds problems of a row: (problem, fix), where "" is the usual fix of the table."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of one row."""

    table: str
    row: str
    """The primary key of the row."""
    problem: str
    fix: str


@dataclass(slots=True)
class CheckReport:
    """Result of a check."""

    facts: StoreFacts
    findings: list[Finding] = field(default_factory=list)
    more: int = 0
    """Findings beyond `FINDINGS_MAX`."""
    rows: dict[str, int] = field(default_factory=dict)
    """Number of rows that were looked at, by table."""

    def add(self, finding: Finding) -> None:
        """Keeps or counts it."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.more += 1


@dataclass(slots=True)
class _Partition:
    """Facts of a share-partition that rows of other tables are compared with."""

    place: str
    reset: str
    """The command that mends the share-partition."""
    start: int | None
    end: int
    finished: int
    owner_epoch: int
    unfinished: int = 0
    """Records in ranges that are not in a final state."""
    covered_to: int = -1
    """The last offset of the ranges that were looked at so far."""


def check_store(access: StoreAccess) -> CheckReport:
    """Reads every row in one snapshot.

    Raises:
        InvalidConfigError: There is no store.
        StoreVersionError: It is a database of another program.
    """
    with access.snapshot(any_revision=True) as (connection, facts):
        report = CheckReport(facts)
        if facts.revision != HEAD_REVISION:
            report.add(_other_schema(facts))
            return report
        _Check(connection, report, now_ms=access.dialect.now_ms(connection)).run()
    return report


def _other_schema(facts: StoreFacts) -> Finding:
    return Finding(
        str(ALEMBIC_VERSION.name),
        f"version_num={facts.revision}",
        f"the schema is {facts.revision}, written by sharecoord {facts.release or '(unknown)'}; "
        f"this version knows {HEAD_REVISION}: nothing else was looked at",
        "check with the version that wrote it, or run: sharecoord store migrate",
    )


class _Check:
    """A check that reads every table once."""

    def __init__(self, connection: Connection, report: CheckReport, *, now_ms: int) -> None:
        self._connection = connection
        self._report = report
        self._now_ms = now_ms
        self._partitions: dict[int, _Partition] = {}

    def run(self) -> None:
        """Looks at all rows; share-partitions come before the rows that name them."""
        looks: list[tuple[Table, str, Look]] = [
            (STORE_META, "write the value that is meant with UPDATE", self._meta),
            (COORDINATOR, _NEW_ROW, self._coordinator),
            (SHARE_GROUP, _MEND, self._group),
            (BLOCKED_KEY, "delete the row, and block the key again", self._blocked_key),
            (SHARE_PARTITION, _MEND, self._partition),
            (IN_FLIGHT, _MEND, self._range),
            (MEMBER, "delete the row; the member joins again by itself", self._member),
            (BOOK_ENTRY, _MEND, self._entry),
            (LETTER_MARK, _MEND, self._mark),
        ]
        for table, fix, look in looks:
            self._table(table, fix, look)
        self._counts()

    def _table(self, table: Table, fix: str, look: Look) -> None:
        count = 0
        with stored_rows(self._connection, table) as rows:
            for row in rows:
                count += 1
                usual = _ENTRY_FIXES.get(row[0], fix) if table is BOOK_ENTRY else fix
                for problem, better_fix in self._problems(table, row, look):
                    self._add(table, row, problem, better_fix or usual)
        self._report.rows[str(table.name)] = count

    @staticmethod
    def _problems(table: Table, row: Row, look: Look) -> Iterator[tuple[str, str]]:
        problems = problems_of(table, row)
        if problems:
            # Only what has the right types can be understood.
            yield from ((problem, "") for problem in problems)
        else:
            yield from look(dict(zip(table.columns.keys(), row, strict=True)))

    def _add(self, table: Table, row: Row, problem: str, fix: str) -> None:
        # SQLAlchemy's names are a kind of text that YAML does not know.
        self._report.add(Finding(str(table.name), name_of(table, row), problem, fix))

    # -- one look per table ---------------------------------------------------------------------

    def _meta(self, row: Values) -> Iterator[tuple[str, str]]:
        if row["value"].isdecimal():
            return
        if row["name"] == EPOCH_FLOOR:
            fix = "set it to the highest owner_epoch, state_epoch and group_epoch that there is"
            yield f"value is {row['value']!r}, not a number", fix
        if row["name"] == MEMBER_EPOCH_FLOOR:
            fix = "set it to the store's clock in milliseconds, or to the highest member_epoch"
            yield f"value is {row['value']!r}, not a number", fix

    def _coordinator(self, row: Values) -> Iterator[tuple[str, str]]:
        if not _is_address(row["address"]) and not row["address"].startswith("unix:"):
            yield f"address {row['address']!r} is neither HOST:PORT nor unix:PATH", ""
        if row["peer_address"] and not _is_address(row["peer_address"]):
            yield f"peer_address {row['peer_address']!r} is not HOST:PORT", ""
        if row["secret"] is not None and not _SECRET.fullmatch(row["secret"]):
            # Never with the value, which a report must not show.
            yield f"secret is not {2 * SECRET_BYTES} hexadecimal digits: it gets no links", ""
        ahead_ms = row["lease_until_ms"] - self._now_ms
        if ahead_ms > LEASE_MAX_MS:
            problem = (
                f"the lease lasts {ahead_ms / 1000:.0f} s more by the store's clock: so long "
                "nobody takes over its share-partitions when it dies"
            )
            yield problem, f"set the clock right; {_NEW_ROW}"

    def _group(self, row: Values) -> Iterator[tuple[str, str]]:
        fix = "set config to {} with UPDATE, then: sharecoord configs --entity-type groups "
        fix += f"--entity-name {shlex.quote(row['group_id'])} --alter --add-config …"
        config = _json(row["config"])
        if not isinstance(config, dict) or not all(isinstance(v, str) for v in config.values()):
            yield "config is no JSON object of texts", fix
        else:
            for name, value in config.items():
                try:
                    GROUP_SETTINGS.find(name).parse(value)
                except InvalidConfigError as error:
                    yield error.message, fix
        if not _is_read_by(decode_pauses, row["paused"]):
            yield "paused is not as the coordinator writes it", "set paused to [] with UPDATE"
        if row["group_epoch"] < 0:
            yield f"group_epoch is {row['group_epoch']}", ""

    @staticmethod
    def _blocked_key(row: Values) -> Iterator[tuple[str, str]]:
        if row["key_digest"] != key_digest(row["record_key"]):
            yield "key_digest is not that of record_key", ""

    def _partition(self, row: Values) -> Iterator[tuple[str, str]]:
        place = f"group {row['group_id']}, topic {row['topic']}, partition {row['partition_index']}"
        if row["lane"]:
            place += f", lane {row['lane']}"
        head = [row[name] for name in _HEAD]
        whole = None not in head
        start, end, finished, _ = head if whole else (None, 0, 0, 0)
        topic = shlex.quote(f"{row['topic']}:{row['partition_index']}")
        reset = (
            f"sharecoord groups --reset-offsets --group {shlex.quote(row['group_id'])} --topic "
            f"{topic} --to-offset {max(start or 0, 0)} --execute (delivers again from there), or "
            "restore a backup"
        )
        if row["lane"]:
            reset = "restore a backup, or redrive its letters with --again"
        known = _Partition(place, reset, start, end, finished, row["owner_epoch"])
        self._partitions[row["id"]] = known
        if not whole and any(value is not None for value in head):
            yield f"{place}: {', '.join(_HEAD)} are not all set", reset
        elif start is not None and not 0 <= start <= end:
            yield f"{place}: start_offset {start} and end_offset {end} are no window", reset
        if row["partition_index"] < 0:
            yield f"{place}: partition_index is negative", ""
        stops_at = row["stops_at"]
        if stops_at is not None and whole and end > stops_at:
            yield f"{place}: end_offset {end} is beyond stops_at {stops_at}", reset
        if row["rate_limit"] < 0:
            yield f"{place}: rate_limit is {row['rate_limit']}; 0 = none", ""
        if row["topic_id"] and not _is_topic_id(row["topic_id"]):
            yield f"{place}: topic_id {row['topic_id']!r} is not 32 hex digits", ""
        if row["owner"] == "":
            yield f"{place}: owner is empty text, not NULL", ""
        if not _is_read_by(decode_passed_over, row["passed_over"]):
            yield f"{place}: passed_over is no JSON array of [first, last]", "set it to []"
        yield from _epoch_problems(place, row)

    def _range(self, row: Values) -> Iterator[tuple[str, str]]:
        first, last = row["first_offset"], row["last_offset"]
        part = self._partitions.get(row["partition_id"])
        if part is None:
            yield "there is no such share-partition", "delete the row"
            return
        for problem in (*_place_problems(part, first, last), *_state_problems(row, part)):
            yield f"{part.place}, [{first}, {last}]: {problem}", part.reset
        part.covered_to = max(part.covered_to, last)
        if row["state"] != RecordState.ARCHIVED:
            part.unfinished += max(0, last - first + 1)

    def _member(self, row: Values) -> Iterator[tuple[str, str]]:
        topics = _json(row["topics"])
        if not isinstance(topics, list) or not all(isinstance(name, str) for name in topics):
            yield "topics is no JSON array of texts", ""
        if row["member_epoch"] < 0:
            yield f"member_epoch is {row['member_epoch']}", ""

    def _entry(self, row: Values) -> Iterator[tuple[str, str]]:
        kind, part = row["kind"], self._partitions.get(row["partition_id"])
        if kind not in KINDS:
            yield f"kind {kind!r} is none of {', '.join(KINDS)}", "delete the row"
        if part is None:
            yield "there is no such share-partition", "delete the row"
        elif kind in WINDOW_KINDS:
            yield from _window_problems(row["record_offset"], part)
        if row["headers"] is not None and not _is_read_by(decode_headers, row["headers"]):
            yield "headers are not as the coordinator writes them", ""
        for name in ("delivery_count", "size_bytes"):
            if (row[name] or 0) < 0:
                yield f"{name} is {row[name]}", ""
        members = [] if row["members"] is None else _json(row["members"])
        if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
            yield "members is no JSON array of texts", "set members to [] with UPDATE"
        size = len(row["checkpoint"] or b"")
        if size > CHECKPOINT_BYTES_MAX:
            yield f"checkpoint has {size} bytes; {CHECKPOINT_BYTES_MAX} is the most", ""

    def _mark(self, row: Values) -> Iterator[tuple[str, str]]:
        if row["partition_id"] not in self._partitions:
            yield "there is no such share-partition", "delete the row"
        if not 0 <= row["first_offset"] <= row["last_offset"]:
            yield f"[{row['first_offset']}, {row['last_offset']}] are no offsets", ""
        if row["kind"] not in {str(kind) for kind in MarkKind}:
            yield f"kind {row['kind']!r} is neither redriven nor discarded", ""

    def _counts(self) -> None:
        """Compares finished counts with the ranges of their share-partitions."""
        for id_, part in self._partitions.items():
            if part.start is None:
                continue
            counted = part.end - part.start - part.unfinished
            if counted != part.finished:
                problem = (
                    f"{part.place}: finished_count is {part.finished}, its ranges leave {counted}"
                )
                fix = "the next commit of a coordinator writes it anew; until then the lag is wrong"
                self._report.add(Finding(str(SHARE_PARTITION.name), f"id={id_}", problem, fix))


def _window_problems(offset: int, part: _Partition) -> Iterator[tuple[str, str]]:
    if part.start is None:
        yield f"{part.place}: the share-partition has no start offset yet", ""
    elif not part.start <= offset < part.end:
        yield f"{part.place}: offset {offset} is not inside its window", ""


def _place_problems(part: _Partition, first: int, last: int) -> Iterator[str]:
    if first > last:
        yield "it ends before it begins"
    if part.start is None:
        yield "the share-partition has no start offset yet"
    elif first < part.start or last >= part.end:
        yield f"it is not inside the window [{part.start}, {part.end})"
    if first <= part.covered_to:
        yield f"it overlaps the range before it, which ends at {part.covered_to}"


def _state_problems(row: Values, part: _Partition) -> Iterator[str]:
    state, count, token = row["state"], row["delivery_count"], row["lock_token"]
    if state not in _STORED_STATES:
        yield f"state {state} is none of AVAILABLE 0, ACQUIRED 1, ARCHIVING 3, ARCHIVED 4"
    elif state == RecordState.ACQUIRED:
        if not row["member_id"] or token <= 0 or row["deadline_ms"] <= 0:
            yield "it is ACQUIRED without member, lock token or deadline"
    elif row["member_id"] or row["deadline_ms"] or row["granted_ms"]:
        yield f"it is {RecordState(state).name} and has a lock"
    if not 0 <= count <= DELIVERY_COUNT_MAX:
        yield f"delivery_count {count} is not between 0 and {DELIVERY_COUNT_MAX}"
    if row["hand_outs"] < count:
        yield f"hand_outs {row['hand_outs']} is less than delivery_count {count}"
    if token >> 32 > part.owner_epoch:
        yield f"its lock token is of owner epoch {token >> 32}, beyond {part.owner_epoch}"
    size, hashes = row["last_offset"] - row["first_offset"] + 1, row["key_hashes"]
    if hashes is not None and len(hashes) != 8 * size:
        yield f"key_hashes has {len(hashes)} bytes for {size} records; 8 for each is right"
    if row["history"] is not None and not _is_read_by(history_from_text, row["history"]):
        yield "history is not as the coordinator writes it"


def _is_read_by(decode: Callable[[str], object], text: str) -> bool:
    """Whether a text is as the coordinator writes it."""
    try:
        decode(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        return False
    return True


def _epoch_problems(place: str, row: Values) -> Iterator[tuple[str, str]]:
    for name in ("owner_epoch", "state_epoch", "replay_epoch", "change_sequence"):
        if row[name] < 0:
            yield f"{place}: {name} is {row[name]}", ""


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and int(port) < 1 << 16


def _is_topic_id(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)
