"""How groups are printed: Kafka's columns first, in Kafka's order, then ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from sharecoord.cli.output import Column, Output, note, printable

if TYPE_CHECKING:
    from sharecoord_sdk.admin import (
        AdminError,
        ExportedOffsets,
        GroupDescription,
        GroupListing,
        ImportedOffsets,
        PartitionOffsets,
        Pause,
        PauseAnswer,
        ResetResult,
    )

_GROUP = Column("GROUP", "group")
_TOPIC = Column("TOPIC", "topic")
_PARTITION = Column("PARTITION", "partition")
_STATE = Column("STATE", "state")


def show_list(groups: Sequence[GroupListing], output: Output, *, with_state: bool) -> None:
    """Names, and with `with_state` states."""
    if output.format == "table" and not with_state:
        for group in groups:
            click.echo(printable(group.group_id))
        return
    rows = [{"group": group.group_id, "state": group.state.value} for group in groups]
    output.show([_GROUP, _STATE] if with_state else [_GROUP], rows)


def show_offsets(groups: Sequence[GroupDescription], output: Output, *, verbose: bool) -> None:
    """Start offsets and lag."""
    columns = [
        _GROUP,
        _TOPIC,
        _PARTITION,
        *([Column("LEADER-EPOCH", "leader_epoch")] if verbose else []),
        Column("START-OFFSET", "start_offset"),
        Column("LAG", "lag"),
        Column("END-OFFSET", "end_offset"),
        Column("LOG-END-OFFSET", "log_end_offset"),
        Column("ACQUIRED", "acquired"),
        Column("AVAILABLE", "available"),
        Column("DELAYED", "delayed"),
        Column("ARCHIVED", "archived"),
        Column("STATUS", "status"),
    ]
    rows = [_offsets_row(group.group_id, p) for group in groups for p in group.offsets]
    output.show(columns, rows)
    for group in groups:
        if not group.offsets:
            note(
                f"share group '{group.group_id}' has no offset information: it gets some when a "
                "member joins, or by --reset-offsets"
            )
    _tell_empty(groups)


def _offsets_row(group_id: str, offsets: PartitionOffsets) -> dict[str, Any]:
    return {
        "group": group_id,
        "topic": offsets.name,
        "partition": offsets.partition,
        "leader_epoch": offsets.leader_epoch,
        "start_offset": offsets.start_offset,
        "lag": offsets.lag,
        "end_offset": offsets.end_offset,
        "log_end_offset": offsets.log_end_offset,
        "acquired": offsets.acquired_records,
        "available": offsets.available_records,
        "delayed": offsets.delayed_records,
        "archived": offsets.archived_records,
        "status": _status(offsets),
    }


def _status(offsets: PartitionOffsets) -> str:
    if offsets.stopped_reason:
        return f"stopped: {offsets.stopped_reason}"
    if offsets.pause is not None:
        return f"paused by {_whom(offsets.pause)}"
    if offsets.window_full_at is not None:
        return f"window full at {offsets.window_full_at}"
    if offsets.start_offset is None:
        return "not started"
    if offsets.stops_at is not None:
        rate = f", {offsets.rate_limit}/s" if offsets.rate_limit else ""
        return f"stops at {offsets.stops_at}{rate}"
    if offsets.payloads_not_kept:
        return f"{offsets.payloads_not_kept} payloads not kept"
    return "log end unknown" if offsets.log_end_offset is None else "ok"


def show_members(groups: Sequence[GroupDescription], output: Output, *, verbose: bool) -> None:
    """Members and what they may receive from."""
    details = [Column("MEMBER-EPOCH", "member_epoch"), Column("COORDINATOR", "coordinator_id")]
    columns = [
        _GROUP,
        Column("CONSUMER-ID", "consumer_id"),
        Column("HOST", "host"),
        Column("CLIENT-ID", "client_id"),
        Column("#PARTITIONS", "partitions"),
        *(details if verbose else []),
        Column("ASSIGNMENT", "assignment"),
        Column("ACQUIRED", "acquired"),
        Column("DELIVERED", "delivered"),
        Column("ACKNOWLEDGED", "acknowledged"),
        Column("FAIR-SHARE", "fair_share"),
        Column("PAUSED", "paused"),
    ]
    rows = [
        {
            "group": group.group_id,
            "consumer_id": member.member_id,
            "host": member.host,
            "client_id": member.client_id,
            "partitions": sum(len(numbers) for numbers in member.assignment.values()),
            "member_epoch": member.member_epoch,
            "coordinator_id": member.coordinator_id,
            "assignment": {topic: list(numbers) for topic, numbers in member.assignment.items()},
            "acquired": member.acquired_records,
            "delivered": member.delivered_total,
            "acknowledged": member.acknowledged_total,
            "fair_share": member.fair_share_ratio,
            "paused": _whom(member.pause) if member.pause else None,
        }
        for group in groups
        for member in group.members
    ]
    output.show(columns, rows)
    _tell_empty(groups)


def show_states(groups: Sequence[GroupDescription], output: Output, *, verbose: bool) -> None:
    """State and number of members."""
    epochs = [
        Column("GROUP-EPOCH", "group_epoch"),
        Column("ASSIGNMENT-EPOCH", "assignment_epoch"),
    ]
    columns = [
        _GROUP,
        Column("COORDINATOR (ID)", "coordinator"),
        _STATE,
        *(epochs if verbose else []),
        Column("#MEMBERS", "members"),
        Column("FAIRNESS", "fairness"),
        Column("PAUSED", "paused"),
    ]
    rows = [
        {
            "group": group.group_id,
            "coordinator": group.coordinator_id,
            "state": group.state.value,
            "group_epoch": group.group_epoch,
            # There is no assignor: every member may receive from every partition of its topics.
            "assignment_epoch": None,
            "members": group.member_count,
            "fairness": group.fairness_jain_ratio,
            "paused": "; ".join(map(_pause_text, group.pauses)) or None,
        }
        for group in groups
    ]
    output.show(columns, rows)
    _tell_empty(groups)


def _tell_empty(groups: Iterable[GroupDescription]) -> None:
    for group in groups:
        if group.member_count == 0:
            note(f"share group '{group.group_id}' has no active members")


def _whom(pause: Pause) -> str:
    """By whom something was paused, why, and since when."""
    since = datetime.fromtimestamp(pause.since_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    why = f": {pause.reason}" if pause.reason else ""
    return f"{pause.paused_by}{why} (since {since})"


def _paused_what(pause: Pause) -> str:
    if pause.member_id:
        return f"member {pause.member_id}"
    if not pause.topic:
        return "the group"
    return pause.topic if pause.partition is None else f"{pause.topic}[{pause.partition}]"


def _pause_text(pause: Pause) -> str:
    return f"{_paused_what(pause)} by {_whom(pause)}"


def show_pauses(group_id: str, answer: PauseAnswer, output: Output, *, done: str) -> None:
    """What a pause or a resume did."""
    columns = [_GROUP, Column("WHAT", "what"), Column("STATUS", "status"), Column("NOTE", "note")]
    rows = [
        {
            "group": group_id,
            "what": _paused_what(result.pause),
            "status": done if result.changed else "unchanged",
            "note": result.note,
        }
        for result in answer.results
    ]
    output.show(columns, rows)
    for pause in answer.pauses:
        note(f"paused: {_pause_text(pause)}")


def show_reset(group_id: str, results: Sequence[ResetResult], output: Output) -> None:
    """New start offsets."""
    columns = [
        _GROUP,
        _TOPIC,
        _PARTITION,
        Column("NEW-OFFSET", "new_offset"),
        Column("OLD-OFFSET", "old_offset"),
        Column("NOTE", "note"),
    ]
    rows = [
        {
            "group": group_id,
            "topic": result.topic,
            "partition": result.partition if result.partition >= 0 else None,
            "new_offset": result.new_offset,
            "old_offset": result.old_offset,
            "note": _reset_note(result),
        }
        for result in results
    ]
    output.show(columns, rows)


def show_import(group_id: str, results: Sequence[ImportedOffsets], output: Output) -> None:
    """New start offsets, and what the consumer group had."""
    columns = [
        _GROUP,
        _TOPIC,
        _PARTITION,
        Column("COMMITTED", "committed"),
        Column("NEW-OFFSET", "new_offset"),
        Column("OLD-OFFSET", "old_offset"),
        Column("LAG", "lag"),
        Column("NOTE", "note"),
    ]
    rows = [
        {
            "group": group_id,
            "topic": each.reset.topic,
            "partition": each.reset.partition if each.reset.partition >= 0 else None,
            "committed": each.committed_offset,
            "new_offset": each.reset.new_offset,
            "old_offset": each.reset.old_offset,
            "lag": each.lag,
            "note": _reset_note(each.reset) or _import_note(each),
        }
        for each in results
    ]
    output.show(columns, rows)


def _import_note(each: ImportedOffsets) -> str:
    return "nothing committed: share.auto.offset.reset" if each.committed_offset is None else ""


def show_exported(name: str, results: Sequence[ExportedOffsets], output: Output) -> None:
    """What was committed for a consumer group."""
    columns = [
        Column("CONSUMER-GROUP", "consumer_group"),
        _TOPIC,
        _PARTITION,
        Column("OFFSET", "offset"),
        Column("AGAIN", "again"),
        Column("STATUS", "status"),
    ]
    rows = [
        {
            "consumer_group": name,
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.offset,
            "again": each.finished_ahead_records,
            "status": _done(each.error),
        }
        for each in results
    ]
    output.show(columns, rows)


def _reset_note(result: ResetResult) -> str:
    if result.error is not None:
        return f"error: {result.error.message}"
    if result.requested_offset is None or result.new_offset is None:
        return ""
    end = "starts" if result.requested_offset < result.new_offset else "ends"
    return f"{result.requested_offset} is outside of the log, which {end} at {result.new_offset}"


def show_deleted_offsets(results: Mapping[str, AdminError | None], output: Output) -> None:
    """What became of each topic."""
    rows = [{"topic": topic, "status": _done(error)} for topic, error in sorted(results.items())]
    output.show([_TOPIC, Column("STATUS", "status")], rows)


def show_deleted(results: Mapping[str, AdminError | None], output: Output) -> None:
    """What became of each group, in a table by Kafka's sentences."""
    if output.format != "table":
        rows = [{"group": name, "status": _done(error)} for name, error in results.items()]
        output.show([_GROUP, Column("STATUS", "status")], rows)
        return
    done = ", ".join(f"'{printable(n)}'" for n, error in results.items() if error is None)
    failed = {name: error for name, error in results.items() if error is not None}
    if not failed:
        click.echo(f"Deletion of requested share groups ({done}) was successful.")
        return
    for name, error in failed.items():
        note(f"sharecoord: error: group '{printable(name)}' was not deleted: {error.message}")
    if done:
        click.echo(f"These share groups were deleted successfully: {done}")


def _done(error: AdminError | None) -> str:
    return "Successful" if error is None else f"Error: {error.message}"


def show_export(rows: Iterable[tuple[str, str, int, int]], output: Output) -> None:
    """Start offsets as JSON or YAML."""
    keys = ("group", "topic", "partition", "offset")
    columns = [Column(key.upper(), key) for key in keys]
    output.show(columns, [dict(zip(keys, row, strict=True)) for row in rows])
