"""`sharecoord groups`: the flags of Kafka's kafka-share-groups, answered by a coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from sharecoord.cli.failures import EXIT_ERROR
from sharecoord.cli.groups import offsets_csv, show
from sharecoord.cli.groups.request import GroupsRequest, checked_action
from sharecoord.cli.options import (
    FILE,
    OFFSET,
    Connect,
    admin_options,
    output_options,
    parse_topics,
    topics_option,
)
from sharecoord.cli.output import Output, note

if TYPE_CHECKING:
    from sharecoord_sdk.admin import AdminClient, GroupDescription

DRY_RUN: Final = "dry run: nothing was changed; use --execute instead of --dry-run to do it"

NO_GROUPS: Final = (
    "there are no share groups yet; the first member that joins makes one, and so does "
    "`sharecoord configs --entity-type groups --entity-name GROUP --alter --add-config …`"
)


@click.command()
@admin_options()
@click.option("--list", "list_", is_flag=True, help="List all share groups.")
@click.option("--describe", is_flag=True, help="Describe groups: offsets, members or state.")
@click.option("--delete", is_flag=True, help="Delete groups that have no members.")
@click.option("--reset-offsets", is_flag=True, help="Move the start offsets of one group.")
@click.option("--delete-offsets", is_flag=True, help="Forget the offsets of whole topics.")
@click.option(
    "--export",
    is_flag=True,
    help="Print start offsets as CSV for --from-file, here or of Kafka's own tools; with "
    "--reset-offsets the planned ones.",
)
@click.option("--pause", is_flag=True, help="Hand out nothing new of a group, or of what is named.")
@click.option("--resume", is_flag=True, help="End pauses, exactly those that are named.")
@click.option(
    "--import",
    "import_",
    is_flag=True,
    help="Start where a consumer group is, or where a native share group is (--from-file).",
)
@click.option(
    "--from-consumer-group", metavar="NAME", help="With --import: the consumer group of Kafka."
)
@click.option(
    "--to-consumer-group",
    metavar="NAME",
    help="With --export: commit the start offsets for this consumer group of Kafka.",
)
@click.option("--group", "groups_", multiple=True, metavar="GROUP", help="The group (repeatable).")
@click.option("--all-groups", is_flag=True, help="All groups.")
@topics_option
@click.option(
    "--member", "member_ids", multiple=True, metavar="ID", help="The member to pause (repeatable)."
)
@click.option("--reason", default="", metavar="TEXT", help="With --pause: why; it is shown.")
@click.option("--all-topics", is_flag=True, help="All topics for which the group has offsets.")
@click.option("--members", is_flag=True, help="With --describe: members.")
@click.option("--offsets", is_flag=True, help="With --describe: offsets and lag (the default).")
@click.option(
    "--state",
    is_flag=False,
    flag_value="",
    metavar="[STATES]",
    help="With --describe: the state. With --list: the states, or groups in these states only "
    "(Empty, Stable, Dead).",
)
@click.option("--verbose", is_flag=True, help="With --describe: more columns.")
@click.option("--to-earliest", is_flag=True, help="Reset to the start of the log.")
@click.option("--to-latest", is_flag=True, help="Reset to the end of the log.")
@click.option("--to-current", is_flag=True, help="Reset to where the group is.")
@click.option(
    "--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="Reset to a time (UTC without zone)."
)
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="Reset to so long before now, such as PT1H30M."
)
@click.option("--to-offset", type=OFFSET, help="Reset to an offset.")
@click.option(
    "--from-file",
    type=FILE,
    help="Reset to, or import, the offsets of a file: CSV of --export, here or of Kafka's own "
    "tools, or what kafka-share-groups.sh --describe prints.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--execute", is_flag=True, help="Do it.")
@click.option("--force", is_flag=True, help="Do it although members are connected.")
@output_options
@click.pass_context
def groups(ctx: click.Context, /, connect: Connect, output: Output, **given: Any) -> None:
    """List, describe, pause, reset and delete share groups.

    The flags are those of Kafka's kafka-share-groups.sh; --bootstrap-server is the coordinator.

    \b
    sharecoord groups --list --state
    sharecoord groups --describe --group G [--members | --state] [--verbose]
    sharecoord groups --reset-offsets --group G --topic T --to-earliest --dry-run
    sharecoord groups --pause --group G [--topic T:0,1 | --member ID] --reason TEXT
    sharecoord groups --delete --group G
    sharecoord groups --export --group G > offsets.csv
    sharecoord groups --import --group G --from-consumer-group C --dry-run
    sharecoord groups --export --group G --to-consumer-group C --execute
    """  # noqa: D301 - Click's mark for lines that stay as they are
    request = GroupsRequest(**given)
    action = checked_action(request)
    run = {
        "list": _list,
        "describe": _describe,
        "delete": _delete,
        "reset-offsets": _reset,
        "delete-offsets": _delete_offsets,
        "export": _export_to_consumer_group if request.to_consumer_group else _export,
        "import": _import if request.from_consumer_group else _reset,
        "pause": _pause,
        "resume": _resume,
    }[action]
    with connect() as admin:
        is_done = run(admin, request, output)
    if not is_done:
        ctx.exit(EXIT_ERROR)


def _list(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    listed = admin.list_groups(request.states())
    show.show_list(listed, output, with_state=request.state is not None)
    if not listed:
        note(NO_GROUPS if not request.state else f"no group is in state {request.state}")
    return True


def _described(
    admin: AdminClient, request: GroupsRequest, *, members: bool, offsets: bool
) -> list[GroupDescription]:
    found = admin.describe_groups(request.groups_, members=members, offsets=offsets)
    if not found:
        note(NO_GROUPS)
    return found


def _describe(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    members, state = request.members, request.state is not None
    found = _described(admin, request, members=members, offsets=not (members or state))
    chosen = show.show_members if members else show.show_states if state else show.show_offsets
    chosen([group for group in found if group.error is None], output, verbose=request.verbose)
    return _tell_errors(found)


def _tell_errors(results: Iterable[Any]) -> bool:
    """Prints the errors of results, one line each; returns whether there are none."""
    errors = [result.error for result in results if result.error is not None]
    for error in errors:
        note(f"sharecoord: error: {error.message}")
    return not errors


def _delete(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    names = list(request.groups_)
    if request.all_groups:
        names = [group.group_id for group in admin.list_groups()]
        if not names:
            note(NO_GROUPS)
            return True
    results = admin.delete_groups(names)
    show.show_deleted(results, output)
    return all(error is None for error in results.values())


def _delete_offsets(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    results = admin.delete_offsets(request.groups_[0], request.topics)
    show.show_deleted_offsets(results, output)
    return all(error is None for error in results.values())


def _pause(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    topics, group_id = parse_topics(request.topics), request.groups_[0]
    answer = admin.pause_group(group_id, topics, request.member_ids, reason=request.reason)
    show.show_pauses(group_id, answer, output, done="paused")
    return True


def _resume(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    topics, group_id = parse_topics(request.topics), request.groups_[0]
    answer = admin.resume_group(group_id, topics, request.member_ids)
    show.show_pauses(group_id, answer, output, done="resumed")
    return True


def _reset(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    group_id = request.groups_[0]
    results = admin.reset_offsets(
        group_id,
        request.reset_to(group_id),
        parse_topics(request.topics),
        dry_run=request.dry_run,
        force=request.force,
    )
    if request.export:
        rows = [
            (group_id, result.topic, result.partition, result.new_offset)
            for result in results
            if result.new_offset is not None
        ]
        offsets_csv.write(rows, with_group=False)
        _tell_errors(results)
    else:
        show.show_reset(group_id, results, output)
    if not results:
        note(f"share group '{group_id}' has no offsets; name topics with --topic")
    elif request.dry_run:
        note(DRY_RUN)
    return all(result.error is None for result in results)


def _import(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    results = admin.import_offsets(
        request.groups_[0],
        str(request.from_consumer_group),
        request.topics,
        dry_run=request.dry_run,
        force=request.force,
    )
    show.show_import(request.groups_[0], results, output)
    if request.dry_run:
        note(DRY_RUN)
    return all(each.reset.error is None for each in results)


def _export_to_consumer_group(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    results = admin.export_offsets(
        request.groups_[0],
        str(request.to_consumer_group),
        request.topics,
        dry_run=request.dry_run,
        force=request.force,
    )
    show.show_exported(str(request.to_consumer_group), results, output)
    again = sum(each.finished_ahead_records for each in results)
    if again:
        note(
            f"{again} records beyond the start offsets are finished here already and will be "
            "delivered again there"
        )
    if request.dry_run:
        note(DRY_RUN)
    return all(each.error is None for each in results)


def _export(admin: AdminClient, request: GroupsRequest, output: Output) -> bool:
    found = _described(admin, request, members=False, offsets=True)
    rows = [
        (group.group_id, offsets.topic, offsets.partition, offsets.start_offset)
        for group in found
        for offsets in group.offsets
        if offsets.start_offset is not None and not offsets.lane
    ]
    with_group = len(found) > 1
    if output.format == "table":
        offsets_csv.write(rows, with_group=with_group)
    else:
        show.show_export(rows, output)
    for line in offsets_csv.advice(found):
        note(line)
    return _tell_errors(found)
