"""Rows of the tables to values of `sharecoord.core.changes` and back.

In-flight ranges need no code: their columns are the fields. Lists and maps are JSON text, so that
a person can read them; record headers keep every byte, their order, duplicates and nulls.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sharecoord.core.changes import (
    BlockedKey,
    Checkpoint,
    DeadLetter,
    GroupRow,
    KeptPayload,
    MemberRow,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.core.dispatch.pauses import Pause, PauseScope
from sharecoord.core.spans import Spans
from sharecoord.store.book_entries import CHECKPOINT, DEAD_LETTER, KEPT_PAYLOAD, Entry

Headers = tuple[tuple[str, bytes | None], ...]

PARTITION_COLUMNS = (
    "id",
    "group_id",
    "topic",
    "topic_id",
    "partition_index",
    "start_offset",
    "end_offset",
    "end_leader_epoch",
    "finished_count",
    "change_sequence",
    "owner",
    "owner_epoch",
    "incarnation",
    "state_epoch",
    "closed",
    "stopped_reason",
    "starts_at_zero",
    "lane",
    "stops_at",
    "rate_limit",
    "replay_epoch",
    "passed_over",
)
"""The order that `decode_partition` wants."""


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# -- share-partitions and ranges ------------------------------------------------------------------


def decode_partition(row: Sequence[Any]) -> PartitionRow:
    """A row of `share_partition` in the order of `PARTITION_COLUMNS`."""
    head = None
    if row[5] is not None:
        head = PartitionHead(
            start_offset=row[5],
            end_offset=row[6],
            end_leader_epoch=row[7],
            finished_count=row[8],
            change_sequence=row[9],
        )
    return PartitionRow(
        partition_id=row[0],
        key=PartitionKey(row[1], row[2], row[3], row[4], row[17]),
        head=head,
        owner=row[10],
        owner_epoch=row[11],
        incarnation=row[12],
        state_epoch=row[13],
        closed=bool(row[14]),
        stopped_reason=row[15],
        starts_at_zero=bool(row[16]),
        stops_at=row[18],
        rate_limit=row[19],
        replay_epoch=row[20],
        passed_over=decode_passed_over(row[21]),
    )


def encode_passed_over(ranges: Spans) -> str:
    """JSON array of [first, last]."""
    return _to_json(ranges)


def decode_passed_over(text: str) -> Spans:
    """The inverse of `encode_passed_over`."""
    return tuple((int(first), int(last)) for first, last in json.loads(text))


def encode_head(head: PartitionHead) -> tuple[int, int, int, int, int]:
    """The columns of a head, in the order of its fields."""
    return (
        head.start_offset,
        head.end_offset,
        head.end_leader_epoch,
        head.finished_count,
        head.change_sequence,
    )


# -- groups and members ---------------------------------------------------------------------------


def encode_config(config: Mapping[str, str]) -> str:
    """A JSON object, names in order."""
    return _to_json(dict(sorted(config.items())))


def decode_group(row: Sequence[Any], blocked_keys: Iterable[BlockedKey] = ()) -> GroupRow:
    """A row of `share_group`, in the order of its columns, with its blocked keys in any order."""
    return GroupRow(
        group_id=row[0],
        config=json.loads(row[1]),
        group_epoch=row[2],
        pauses=decode_pauses(row[3]),
        blocked_keys=tuple(sorted(blocked_keys)),
    )


def encode_pauses(pauses: Iterable[Pause]) -> str:
    """JSON array of objects; what a pause is not about is left out.

    `[{"topic":"orders","partition":1,"since_ms":1700000000000,"by":"operator","reason":"why"}]`
    """
    return _to_json([_pause_object(pause) for pause in pauses])


def _pause_object(pause: Pause) -> dict[str, str | int]:
    scope = pause.scope
    named: dict[str, str | int] = {"topic": scope.topic} if scope.topic else {}
    if scope.partition is not None:
        named["partition"] = scope.partition
    if scope.member_id:
        named["member"] = scope.member_id
    return named | {"since_ms": pause.since_ms, "by": pause.by, "reason": pause.reason}


def decode_pauses(text: str) -> tuple[Pause, ...]:
    """The inverse of `encode_pauses`."""
    return tuple(
        Pause(
            PauseScope(each.get("topic", ""), each.get("partition"), each.get("member", "")),
            each["since_ms"],
            each["by"],
            each["reason"],
        )
        for each in json.loads(text)
    )


def key_digest(key: bytes) -> str:
    """What a blocked key is found by."""
    return hashlib.sha256(key).hexdigest()


def decode_blocked_key(row: Sequence[Any]) -> BlockedKey:
    """The columns `record_key`, `since_ms`, `reason` of `blocked_key`."""
    return BlockedKey(bytes(row[0]), row[1], row[2])


def encode_member(member: MemberRow) -> tuple[str | int, ...]:
    """The columns of `member`, in order."""
    return (
        member.group_id,
        member.member_id,
        member.member_epoch,
        member.client_id,
        member.host,
        member.gateway,
        _to_json(member.topics),
        member.join_number,
    )


def decode_member(row: Sequence[Any]) -> MemberRow:
    """A row of `member`, in the order of its columns."""
    return MemberRow(
        group_id=row[0],
        member_id=row[1],
        member_epoch=row[2],
        client_id=row[3],
        host=row[4],
        gateway=row[5],
        topics=tuple(json.loads(row[6])),
        join_number=row[7],
    )


# -- headers of records ---------------------------------------------------------------------------


def encode_headers(headers: Headers) -> str:
    r"""JSON array of [name, value]: text as a string, other bytes as {"base64": ...}, or null.

    `(("trace", b"abc"), ("raw", b"\xff"))` gives `[["trace","abc"],["raw",{"base64":"/w=="}]]`.
    """
    return _to_json(
        [
            [
                _text_or_base64(name.encode("utf-8", "surrogateescape")),
                None if value is None else _text_or_base64(value),
            ]
            for name, value in headers
        ]
    )


def _text_or_base64(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}


def decode_headers(text: str) -> Headers:
    """The inverse of `encode_headers`, byte for byte."""
    return tuple(
        (
            name if isinstance(name, str) else _bytes_of(name).decode("utf-8", "surrogateescape"),
            None if value is None else _bytes_of(value),
        )
        for name, value in json.loads(text)
    )


def _bytes_of(content: str | dict[str, str]) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8")
    return base64.b64decode(content["base64"], validate=True)


# -- entries of books -----------------------------------------------------------------------------

_NO_RECORD = (None,) * 4
_NO_LETTER = (None,) * 13


def encode_entry(partition_id: int, entry: Entry) -> tuple[object, ...]:
    """The columns of `book_entry`, in order."""
    if isinstance(entry, Checkpoint):
        empty = (*_NO_RECORD, None, None)
        key = (CHECKPOINT, partition_id, entry.offset)
        return (*key, *empty, entry.data, entry.at_ms, *_NO_LETTER)
    record = (entry.key, entry.value, encode_headers(entry.headers), entry.timestamp_ms)
    if isinstance(entry, KeptPayload):
        key = (KEPT_PAYLOAD, partition_id, entry.offset)
        return (*key, *record, entry.timestamp_type, entry.size_bytes, None, None, *_NO_LETTER)
    return (
        DEAD_LETTER,
        partition_id,
        entry.offset,
        *record,
        None,
        None,
        entry.checkpoint,
        None,
        entry.reason,
        entry.delivery_count,
        entry.message,
        entry.payload_known,
        entry.member_id,
        _to_json(entry.members),
        entry.first_failed_at_ms,
        entry.failed_at_ms,
        entry.state_epoch,
        entry.kept,
        entry.sequence,
        entry.topic,
        entry.exactly_once,
    )


def decode_entry(row: Sequence[Any]) -> Any:
    """The `DeadLetter`, `Checkpoint` or `KeptPayload` of a row of `book_entry`."""
    kind, _, offset, key, value, headers, timestamp_ms, timestamp_type, size_bytes = row[:9]
    checkpoint, at_ms = row[9:11]
    if kind == CHECKPOINT:
        return Checkpoint(offset, checkpoint, at_ms)
    record = (key, value, decode_headers(headers), timestamp_ms)
    if kind == KEPT_PAYLOAD:
        return KeptPayload(offset, size_bytes, *record, timestamp_type)
    (
        reason,
        delivery_count,
        message,
        payload_known,
        member_id,
        members,
        first_failed_at_ms,
        failed_at_ms,
        state_epoch,
        kept,
        sequence,
        topic,
        exactly_once,
    ) = row[11:]
    return DeadLetter(
        offset,
        reason,
        delivery_count,
        message,
        *record,
        payload_known=bool(payload_known),
        member_id=member_id,
        members=tuple(json.loads(members)),
        first_failed_at_ms=first_failed_at_ms,
        failed_at_ms=failed_at_ms,
        state_epoch=state_epoch,
        kept=bool(kept),
        checkpoint=checkpoint,
        sequence=sequence,
        topic=topic,
        exactly_once=bool(exactly_once),
    )
