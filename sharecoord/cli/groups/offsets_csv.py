"""Start offsets as CSV, as Kafka's own tools write and read them.

`topic,partition,offset` for one group (as `kafka-share-groups --export` of Kafka 4.4 writes), or
`group,topic,partition,offset` for several. Kafka's --from-file reads both. The table that
`kafka-share-groups --describe` prints is read as well: up to 4.3 Kafka's tool exports nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sharecoord_sdk.admin import GroupDescription

CsvRow = tuple[str, str, int, int]
"""Group, topic, partition, offset."""


def write(rows: Iterable[CsvRow], *, with_group: bool) -> None:
    """Prints rows on stdout, without a header."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        writer.writerow(row if with_group else row[1:])
    click.echo(buffer.getvalue(), nl=False)


def read(path: Path, group_id: str) -> dict[tuple[str, int], int]:
    """Reads the offsets of a group, by topic and partition; lines of other groups are left out."""
    found: dict[tuple[str, int], int] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            if fields[0].split()[:3] == ["GROUP", "TOPIC", "PARTITION"]:
                continue
            parsed = _fields(fields) or _described(fields, path, reader.line_num)
            if parsed is None:
                raise click.UsageError(
                    f"{path}:{reader.line_num}: {','.join(fields)!r} is neither "
                    "topic,partition,offset nor group,topic,partition,offset."
                )
            group, topic, partition, offset = parsed
            if group in ("", group_id):
                found[topic, partition] = offset
    if not found:
        raise click.UsageError(f"{path}: there is no offset of group {group_id!r} in it.")
    return found


def _described(fields: Sequence[str], path: Path, line: int) -> CsvRow | None:
    """Reads a line of `kafka-share-groups --describe`; refuses one without a start offset."""
    words = fields[0].split() if len(fields) == 1 else []
    if len(words) < 4 or not words[2].isdecimal():
        return None
    if words[3] == "-":
        raise click.UsageError(
            f"{path}:{line}: {words[1]}[{words[2]}] has no start offset yet; take the line out, "
            "and share.auto.offset.reset decides where it starts."
        )
    return (words[0], words[1], int(words[2]), int(words[3])) if words[3].isdecimal() else None


def _fields(fields: Sequence[str]) -> CsvRow | None:
    stripped = [field.strip() for field in fields]
    if len(stripped) == 3:
        stripped.insert(0, "")
    if len(stripped) != 4:
        return None
    group, topic, partition, offset = stripped
    if not (topic and partition.isdecimal() and offset.isdecimal()):
        return None
    return group, topic, int(partition), int(offset)


def advice(groups: Sequence[GroupDescription]) -> list[str]:
    """Advice on using exported offsets elsewhere, and on records that they do not cover."""
    exported = [group for group in groups if any(p.start_offset is not None for p in group.offsets)]
    if not exported:
        return []
    name = exported[0].group_id if len(exported) == 1 else "GROUP"
    reset = f"--bootstrap-server KAFKA --group {name} --reset-offsets --from-file FILE --execute"
    lines = [
        "to go on with Kafka's own share groups (tools of Kafka 4.4 or newer):",
        f"  kafka-share-groups.sh {reset}",
        "to go on with a consumer group (any Kafka):",
        f"  kafka-consumer-groups.sh {reset}",
    ]
    ahead = sum(_finished_ahead(group) for group in exported)
    if ahead:
        lines.append(
            f"{ahead} records beyond the start offsets are finished here already and would be "
            "delivered again there"
        )
    members = [group.group_id for group in exported if group.member_count]
    if members:
        lines.append(f"members are still connected ({', '.join(members)}): stop them first")
    return lines


def _finished_ahead(group: GroupDescription) -> int:
    """Records after the start offset that need not be delivered again."""
    total = 0
    for p in group.offsets:
        if p.start_offset is not None and p.log_end_offset is not None and p.lag is not None:
            total += max(0, p.log_end_offset - p.start_offset - p.lag)
    return total
