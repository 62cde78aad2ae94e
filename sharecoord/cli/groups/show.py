"""Listings of groups: Kafka's columns first, in Kafka's order, then ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sharecoord.cli.output import Column, Output, columns, note, printable

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

_GROUP = Column("GROUP", "group", "group_id")
_STATE = Column("STATE", "state", lambda group: group.state.value)
_NAME = Column("GROUP", "group", lambda pair: pair[0])
_OUTCOME = Column("STATUS", "status", lambda pair: _done(pair[1]))


def _in_group(group_id: str) -> Column:
    """The column of one and the same group."""
    return Column("GROUP", "group", lambda _: group_id)


def show_list(groups: Sequence[GroupListing], output: Output, *, with_state: bool) -> None:
    """Names, and with `with_state` states."""
    if output.format == "table" and not with_state:
        for group in groups:
            click.echo(printable(group.group_id))
        return
    output.show([_GROUP, _STATE] if with_state else [_GROUP], groups)


_OFFSETS = columns(
    "topic=name partition leader_epoch start_offset lag end_offset log_end_offset",
    "acquired=acquired_records available=available_records delayed=delayed_records",
    "archived=archived_records",
)
_MEMBERS = columns(
    "consumer_id=member_id host client_id",
    Column("#PARTITIONS", "partitions", lambda member: sum(map(len, member.assignment.values()))),
    "member_epoch",
    Column("COORDINATOR", "coordinator_id"),
    "principal",
    Column("ASSIGNMENT", "assignment", lambda m: {t: list(n) for t, n in m.assignment.items()}),
    "software acquired=acquired_records delivered=delivered_total acknowledged=acknowledged_total",
    "fair_share=fair_share_ratio",
    Column("PAUSED", "paused", lambda member: member.pause and _whom(member.pause)),
)
_STATES = columns(
    Column("COORDINATOR (ID)", "coordinator", "coordinator_id"),
    _STATE,
    "group_epoch",
    # There is no assignor: every member may receive from every partition of its topics.
    Column("ASSIGNMENT-EPOCH", "assignment_epoch", lambda _: None),
    Column("#MEMBERS", "members", "member_count"),
    Column("FAIRNESS", "fairness", "fairness_jain_ratio"),
    Column("PAUSED", "paused", lambda group: "; ".join(map(_pause_text, group.pauses)) or None),
)
_VERBOSE = (
    *("leader_epoch", "member_epoch", "coordinator_id", "principal"),
    *("group_epoch", "assignment_epoch"),
)
"""Keys of the columns that --verbose adds."""


def _chosen(given: Sequence[Column], *, verbose: bool) -> list[Column]:
    return [column for column in given if verbose or column.key not in _VERBOSE]


def _within(part: Iterable[Column]) -> list[Column]:
    """Columns of pairs of a group and a part of it; `part` are the columns of the part."""
    group = Column("GROUP", "group", lambda pair: pair[0].group_id)
    return [group, *(replace(each, value=partial(_of_part, each)) for each in part)]


def _of_part(column: Column, pair: tuple[GroupDescription, Any]) -> Any:
    return column.of(pair[1])


def show_offsets(groups: Sequence[GroupDescription], output: Output, *, verbose: bool) -> None:
    """Start offsets and lag."""
    shown = [*_within(_chosen(_OFFSETS, verbose=verbose)), Column("STATUS", "status", _status)]
    output.show(shown, [(group, offsets) for group in groups for offsets in group.offsets])
    for group in groups:
        if not group.offsets:
            note(
                f"share group '{group.group_id}' has no offset information: it gets some when a "
                "member joins, or by --reset-offsets"
            )
    _tell_more(groups)


def _status(pair: tuple[GroupDescription, PartitionOffsets]) -> str:
    return "; ".join(filter(None, (_serving(*pair), *_concerns(pair[1])))) or "ok"


def _concerns(offsets: PartitionOffsets) -> Iterable[str]:
    """Facts that an operator should know about a share-partition, served or not."""
    if offsets.memory_short:
        yield offsets.memory_short
    if offsets.dead_letters_waiting:
        why = f": {offsets.dead_letters_problem}" if offsets.dead_letters_problem else ""
        yield f"{offsets.dead_letters_waiting} dead letters not in their topic yet{why}"
    if offsets.payloads_not_kept:
        yield f"{offsets.payloads_not_kept} payloads not kept"


def _serving(group: GroupDescription, offsets: PartitionOffsets) -> str:
    """The reason why a share-partition is not served as usual; "" = it is."""
    if offsets.stopped_reason:
        return f"stopped: {offsets.stopped_reason}"
    if offsets.topic in group.refused_topics:
        return "refused by Kafka"
    if offsets.pause is not None:
        return f"paused by {_whom(offsets.pause)}"
    if offsets.window_full_at is not None:
        return f"window full at {offsets.window_full_at}"
    if offsets.start_offset is None:
        return "not started"
    if offsets.stops_at is not None:
        rate = f", {offsets.rate_limit}/s" if offsets.rate_limit else ""
        return f"stops at {offsets.stops_at}{rate}"
    return "log end unknown" if offsets.log_end_offset is None else ""


def show_members(groups: Sequence[GroupDescription], output: Output, *, verbose: bool) -> None:
    """Members and what they may receive from."""
    shown = _within(_chosen(_MEMBERS, verbose=verbose))
    output.show(shown, [(group, member) for group in groups for member in group.members])
    _tell_more(groups)


def show_states(groups: Sequence[GroupDescription], output: Output, *, verbose: bool) -> None:
    """State and number of members."""
    output.show([_GROUP, *_chosen(_STATES, verbose=verbose)], groups)
    _tell_more(groups)


def _tell_more(groups: Iterable[GroupDescription]) -> None:
    """Says which groups have no members; then what keeps topics and settings from working."""
    for group in groups:
        if group.member_count == 0:
            note(f"share group '{group.group_id}' has no active members")
    for group in groups:
        for why in group.refused_topics.values():
            note(why)
        for problem in group.settings_problems:
            note(f"share group '{group.group_id}': a setting is not in force: {problem}")


def _whom(pause: Pause) -> str:
    """Text of a pause: who paused, why, and since when."""
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
    """Results of a pause or a resume, and the pauses that hold now."""
    shown = columns(
        _in_group(group_id),
        Column("WHAT", "what", lambda result: _paused_what(result.pause)),
        Column("STATUS", "status", lambda result: done if result.changed else "unchanged"),
        "note",
    )
    output.show(shown, answer.results)
    for pause in answer.pauses:
        note(f"paused: {_pause_text(pause)}")


def show_reset(group_id: str, results: Sequence[ResetResult], output: Output) -> None:
    """New start offsets."""
    shown = columns(
        _in_group(group_id),
        "topic",
        Column("PARTITION", "partition", _reset_partition),
        "new_offset old_offset",
        Column("NOTE", "note", _reset_note),
    )
    output.show(shown, results)


def _reset_partition(result: ResetResult) -> int | None:
    return result.partition if result.partition >= 0 else None


def show_import(group_id: str, results: Sequence[ImportedOffsets], output: Output) -> None:
    """New start offsets, and what the consumer group had."""
    shown = columns(
        _in_group(group_id),
        Column("TOPIC", "topic", lambda each: each.reset.topic),
        Column("PARTITION", "partition", lambda each: _reset_partition(each.reset)),
        "committed=committed_offset",
        Column("NEW-OFFSET", "new_offset", lambda each: each.reset.new_offset),
        Column("OLD-OFFSET", "old_offset", lambda each: each.reset.old_offset),
        "lag",
        Column("NOTE", "note", lambda each: _reset_note(each.reset) or _import_note(each)),
    )
    output.show(shown, results)


def _import_note(each: ImportedOffsets) -> str:
    return "nothing committed: share.auto.offset.reset" if each.committed_offset is None else ""


def show_exported(name: str, results: Sequence[ExportedOffsets], output: Output) -> None:
    """Offsets that were committed for a consumer group."""
    shown = columns(
        Column("CONSUMER-GROUP", "consumer_group", lambda _: name),
        "topic partition offset again=finished_ahead_records",
        Column("STATUS", "status", lambda each: _done(each.error)),
    )
    output.show(shown, results)


def _reset_note(result: ResetResult) -> str:
    if result.error is not None:
        return f"error: {result.error.message}"
    if result.requested_offset is None or result.new_offset is None:
        return ""
    end = "starts" if result.requested_offset < result.new_offset else "ends"
    return f"{result.requested_offset} is outside of the log, which {end} at {result.new_offset}"


def show_deleted_offsets(results: Mapping[str, AdminError | None], output: Output) -> None:
    """The outcome for each topic."""
    output.show([replace(_NAME, title="TOPIC", key="topic"), _OUTCOME], sorted(results.items()))


def show_deleted(results: Mapping[str, AdminError | None], output: Output) -> None:
    """The outcome for each group; without -o json or yaml by Kafka's sentences."""
    if output.format != "table":
        output.show([_NAME, _OUTCOME], results.items())
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
    shown = columns("group topic partition offset")
    keys = [column.key for column in shown]
    output.show(shown, [dict(zip(keys, row, strict=True)) for row in rows])
