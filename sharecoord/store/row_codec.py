"""Rows of the tables to values of `sharecoord.core.changes` and back.

In-flight ranges need no code: their columns are the fields. Lists and maps are JSON text, so that
a person can read them; record headers keep every byte, their order, duplicates and nulls.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from sqlalchemy import Row

from sharecoord.core.changes import (
    BlockedKey,
    Checkpoint,
    CoordinatorRow,
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
from sharecoord.store.book_entries import (
    CHECKPOINT,
    DEAD_LETTER,
    KEPT_PAYLOAD,
    LETTER_FIELDS,
)

Headers = tuple[tuple[str, bytes | None], ...]


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# -- share-partitions and ranges ------------------------------------------------------------------


KEY_COLUMNS = ("group_id", "topic", "topic_id", "partition_index", "lane")
"""Columns of a `PartitionKey`, in the order of its fields."""

HEAD_COLUMNS = (
    "start_offset",
    "end_offset",
    "end_leader_epoch",
    "finished_count",
    "change_sequence",
)
"""Columns of a `PartitionHead`, in the order of its fields, whose names they have."""

encode_head = attrgetter(*HEAD_COLUMNS)
"""The columns of a head."""


def head_values(head: PartitionHead | None) -> dict[str, int | None]:
    """Column values of a head; None = not initialised, whose change sequence stays."""
    if head is None:
        return dict.fromkeys(HEAD_COLUMNS[:-1])
    return dict(zip(HEAD_COLUMNS, encode_head(head), strict=True))


def key_values(key: PartitionKey) -> dict[str, str | int]:
    """Column values of a key."""
    values = key.group_id, key.topic, key.topic_id, key.partition, key.lane
    return dict(zip(KEY_COLUMNS, values, strict=True))


def decode_partition(row: Row[Any]) -> PartitionRow:
    """The share-partition of a row of `share_partition`."""
    values = dict(row._mapping)
    head = [values.pop(name) for name in HEAD_COLUMNS]
    values["passed_over"] = decode_passed_over(values["passed_over"])
    return PartitionRow(
        partition_id=values.pop("id"),
        key=PartitionKey(*map(values.pop, KEY_COLUMNS)),
        head=None if head[0] is None else PartitionHead(*head),
        **values,
    )


def encode_passed_over(ranges: Spans) -> str:
    """JSON array of [first, last]."""
    return _to_json(ranges)


def decode_passed_over(text: str) -> Spans:
    """The inverse of `encode_passed_over`."""
    return tuple((int(first), int(last)) for first, last in json.loads(text))


# -- groups and members ---------------------------------------------------------------------------


def encode_secret(secret: bytes) -> str | None:
    """Hexadecimal digits, because the tables have no blobs for people to stumble over."""
    return secret.hex() or None


def decode_coordinator(row: Sequence[Any]) -> CoordinatorRow:
    """The coordinator of a row of id, addresses, draining and secret, in this order.

    A secret that is no hexadecimal text proves nothing, and counts as none.
    """
    coordinator_id, address, peer_address, draining, text = row
    try:
        secret = bytes.fromhex(text or "")
    except ValueError:
        secret = b""
    return CoordinatorRow(coordinator_id, address, peer_address, draining, secret)


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
        made_by=row[4],
        blocked_keys=tuple(sorted(blocked_keys)),
    )


def encode_pauses(pauses: Iterable[Pause]) -> str:
    """JSON array of objects; a name that a pause does not have is left out.

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
    """Digest by which the row of a blocked key is found."""
    return hashlib.sha256(key).hexdigest()


def decode_blocked_key(row: Sequence[Any]) -> BlockedKey:
    """The columns `record_key`, `since_ms`, `reason` of `blocked_key`."""
    return BlockedKey(bytes(row[0]), row[1], row[2])


def member_values(member: MemberRow) -> dict[str, Any]:
    """Column values of a member."""
    return asdict(member) | {"topics": _to_json(member.topics)}


def decode_member(row: Any) -> MemberRow:
    """The inverse of `member_values`."""
    return MemberRow(**{**row, "topics": tuple(json.loads(row["topics"]))})


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

_letter_values = attrgetter(*LETTER_FIELDS)


def encode_entries(
    kind: str, partition_id: int, entries: Iterable[Any]
) -> list[tuple[object, ...]]:
    """Rows of entries of one kind, with the columns of `COLUMNS_OF_KIND`."""
    if kind == CHECKPOINT:
        return [(kind, partition_id, *entry) for entry in entries]
    rows: list[tuple[object, ...]] = []
    for entry in entries:
        headers = encode_headers(entry.headers)
        record = (entry.offset, entry.key, entry.value, headers, entry.timestamp_ms)
        if kind == DEAD_LETTER:
            rest = (entry.checkpoint, *_letter_values(entry), _to_json(entry.members))
        else:
            rest = (entry.timestamp_type, entry.size_bytes)
        rows.append((kind, partition_id, *record, *rest))
    return rows


def decode_entry(row: Sequence[Any]) -> Any:
    """The `DeadLetter`, `Checkpoint` or `KeptPayload` of a row of `book_entry`."""
    kind, _, offset, key, value, headers, timestamp_ms, timestamp_type, size_bytes = row[:9]
    checkpoint, at_ms, *letter, members = row[9:]
    if kind == CHECKPOINT:
        return Checkpoint(offset, checkpoint, at_ms)
    headers = decode_headers(headers)
    if kind == KEPT_PAYLOAD:
        return KeptPayload(offset, size_bytes, key, value, headers, timestamp_ms, timestamp_type)
    fields = dict(zip(LETTER_FIELDS, letter, strict=True))
    # Databases without booleans have 0 and 1.
    fields |= {name: bool(fields[name]) for name in ("payload_known", "kept", "exactly_once")}
    return DeadLetter(
        offset=offset,
        key=key,
        value=value,
        headers=headers,
        timestamp_ms=timestamp_ms,
        checkpoint=checkpoint,
        members=tuple(json.loads(members)),
        **fields,
    )
