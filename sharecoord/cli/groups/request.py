"""Options of one `sharecoord groups` call, checked by the rules of Kafka's kafka-share-groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sharecoord.cli.groups import offsets_csv
from sharecoord.cli.options import parse_by_duration_ms, parse_datetime_ms, parse_topics

if TYPE_CHECKING:
    from sharecoord_sdk.admin import GroupState, ResetTo


@dataclass(frozen=True, slots=True)
class GroupsRequest:
    """The options of one call, by their names."""

    list_: bool = False
    describe: bool = False
    delete: bool = False
    reset_offsets: bool = False
    delete_offsets: bool = False
    export: bool = False
    import_: bool = False
    from_consumer_group: str | None = None
    to_consumer_group: str | None = None
    groups_: tuple[str, ...] = ()
    all_groups: bool = False
    topics: tuple[str, ...] = ()
    all_topics: bool = False
    members: bool = False
    offsets: bool = False
    state: str | None = None
    verbose: bool = False
    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_datetime: str | None = None
    by_duration: str | None = None
    to_offset: int | None = None
    from_file: Path | None = None
    dry_run: bool = False
    execute: bool = False
    force: bool = False
    pause: bool = False
    resume: bool = False
    member_ids: tuple[str, ...] = ()
    reason: str = ""

    def states(self) -> list[GroupState]:
        """The states that --list is limited to; refuses a state that groups do not have."""
        from sharecoord_sdk.admin import GroupState

        by_name = {state.value.lower(): state for state in GroupState}
        found: list[GroupState] = []
        for text in (self.state or "").split(","):
            name = text.strip().lower()
            if name and name not in by_name:
                known = ", ".join(state.value for state in GroupState)
                raise click.UsageError(f"--state: {text.strip()!r} is not one of {known}.")
            if name:
                found.append(by_name[name])
        return found

    def reset_to(self, group_id: str) -> ResetTo:
        """The target of a reset; refuses a time, or a line of the file, that can not be read."""
        from sharecoord_sdk.admin import ResetTo

        if self.to_earliest:
            return ResetTo.earliest()
        if self.to_latest:
            return ResetTo.latest()
        if self.to_current:
            return ResetTo.current()
        if self.to_datetime is not None:
            return ResetTo.timestamp(parse_datetime_ms(self.to_datetime))
        if self.by_duration is not None:
            return ResetTo.duration(parse_by_duration_ms(self.by_duration))
        if self.to_offset is not None:
            return ResetTo.offset(self.to_offset)
        assert self.from_file is not None, "one scenario was checked to be there"
        return ResetTo.offsets(offsets_csv.read(self.from_file, group_id))


_NOTHING: Final = GroupsRequest()
_SCENARIOS: Final = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_datetime",
    "by_duration",
    "to_offset",
    "from_file",
)
_RESETS: Final = frozenset({"reset-offsets"})
_MOVES: Final = frozenset({"reset-offsets", "import", "export --to-consumer-group"})
_PAUSES: Final = frozenset({"pause", "resume"})
_TAKEN_BY: Final = {
    "from_consumer_group": {"import"},
    "to_consumer_group": {"export --to-consumer-group"},
    "all_topics": _RESETS,
    "members": {"describe"},
    "offsets": {"describe"},
    "verbose": {"describe"},
    "state": {"describe", "list"},
    **dict.fromkeys(_SCENARIOS, _RESETS),
    "from_file": {"reset-offsets", "import"},
    "dry_run": _MOVES,
    "execute": _MOVES,
    "force": _MOVES,
    "topics": _MOVES | _PAUSES | {"delete-offsets"},
    "member_ids": _PAUSES,
    "reason": {"pause"},
}
"""Actions that take an option, by the name of its field; other actions refuse the option."""


def _is_given(request: GroupsRequest, name: str) -> bool:
    return bool(getattr(request, name) != getattr(_NOTHING, name))


def _flag(name: str) -> str:
    found = {"topics": "topic", "member_ids": "member"}.get(name, name)
    return f"--{found.replace('_', '-')}"


def _check_scope(request: GroupsRequest) -> None:
    if not request.groups_ and not request.all_groups:
        raise click.UsageError("name the group with --group, or give --all-groups.")


def _check_one_group(request: GroupsRequest, action: str) -> None:
    if len(request.groups_) != 1:
        raise click.UsageError(f"{action} one --group.")


def _check_one_way(request: GroupsRequest, action: str) -> None:
    if request.dry_run == request.execute:
        raise click.UsageError(f"{action} takes one of --dry-run and --execute.")


def _check_whole_topics(request: GroupsRequest, why: str) -> None:
    for topic in request.topics:
        if ":" in topic:
            raise click.UsageError(
                f"--topic {topic}: {why} whole topics; leave the partitions out."
            )


def _check_export(request: GroupsRequest) -> None:
    if request.to_consumer_group is None:
        _check_scope(request)
        return
    _check_one_group(request, "--export --to-consumer-group takes")
    _check_one_way(request, "--export --to-consumer-group")
    _check_whole_topics(request, "--export --to-consumer-group takes")


def _check_import(request: GroupsRequest) -> None:
    _check_one_group(request, "--import takes")
    if (request.from_consumer_group is None) == (request.from_file is None):
        raise click.UsageError(
            "--import takes one of --from-consumer-group NAME and --from-file FILE (for a native "
            "share group what kafka-share-groups.sh --describe or --export prints)."
        )
    _check_one_way(request, "--import")
    if request.from_file is None:
        _check_whole_topics(request, "--import takes")


def _check_list(request: GroupsRequest) -> None:
    if request.groups_ or request.all_groups:
        raise click.UsageError("--list takes no --group: it lists all of them.")
    request.states()


def _check_describe(request: GroupsRequest) -> None:
    _check_scope(request)
    if request.members + request.offsets + (request.state is not None) > 1:
        raise click.UsageError("--describe takes one of --members, --offsets, --state.")
    if request.state:
        raise click.UsageError("--describe takes --state without a value.")


def _check_delete(request: GroupsRequest) -> None:
    _check_scope(request)
    if request.topics:
        raise click.UsageError("--delete takes no --topic; --delete-offsets does.")


def _check_delete_offsets(request: GroupsRequest) -> None:
    if len(request.groups_) != 1 or not request.topics:
        raise click.UsageError("--delete-offsets takes one --group and one --topic or more.")
    _check_whole_topics(request, "offsets are deleted for")


def _check_pause(request: GroupsRequest) -> None:
    _check_one_group(request, "--pause and --resume take")
    parse_topics(request.topics)


def _check_reset(request: GroupsRequest) -> None:
    _check_one_way(request, "--reset-offsets")
    _check_one_group(request, "--reset-offsets takes")
    scenarios = [_flag(name) for name in _SCENARIOS if _is_given(request, name)]
    if len(scenarios) != 1:
        raise click.UsageError(
            f"--reset-offsets takes one of {', '.join(map(_flag, _SCENARIOS))}; "
            f"given: {' and '.join(scenarios) or 'none'}."
        )
    if request.topics and request.all_topics:
        raise click.UsageError("--topic and --all-topics exclude each other.")
    if not (request.topics or request.all_topics or request.from_file):
        raise click.UsageError("--reset-offsets takes --topic TOPIC[:0,1] or --all-topics.")
    parse_topics(request.topics)


_CHECKS: Final = {
    "list": _check_list,
    "describe": _check_describe,
    "delete": _check_delete,
    "reset-offsets": _check_reset,
    "delete-offsets": _check_delete_offsets,
    "export": _check_export,
    "import": _check_import,
    "pause": _check_pause,
    "resume": _check_pause,
}


def checked_action(request: GroupsRequest) -> str:
    """The action that was chosen; refuses options that do not go together, by Kafka's rules.

    --export is an action when there is no --reset-offsets.

    Raises:
        click.UsageError: Names the option and the fix.
    """
    fields = {"list": "list_", "import": "import_"}
    actions = [
        action
        for action in _CHECKS
        if getattr(request, fields.get(action, action.replace("-", "_")))
        and not (action == "export" and request.reset_offsets)
    ]
    if len(actions) != 1:
        names = ", ".join(f"--{action}" for action in _CHECKS)
        raise click.UsageError(f"give exactly one action: {names}.")
    if request.groups_ and request.all_groups:
        raise click.UsageError("--group and --all-groups exclude each other.")
    (action,) = actions
    _CHECKS[action](request)
    whole = f"{action} --to-consumer-group" if request.to_consumer_group is not None else action
    for name, actions_that_take_it in _TAKEN_BY.items():
        if _is_given(request, name) and not actions_that_take_it & {action, whole}:
            raise click.UsageError(f"--{action} does not take {_flag(name)}.")
    return action
