"""What `sharecoord groups` was asked, by the rules of Kafka's kafka-share-groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sharecoord.cli import offsets_csv

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
        """The states that --list is limited to.

        Raises:
            click.UsageError: A state that groups do not have.
        """
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

    def scenarios(self) -> list[str]:
        """The reset scenarios that were chosen."""
        chosen = {
            "--to-earliest": self.to_earliest,
            "--to-latest": self.to_latest,
            "--to-current": self.to_current,
            "--to-datetime": self.to_datetime is not None,
            "--by-duration": self.by_duration is not None,
            "--to-offset": self.to_offset is not None,
            "--from-file": self.from_file is not None,
        }
        return [name for name, is_chosen in chosen.items() if is_chosen]

    def reset_to(self, group_id: str) -> ResetTo:
        """Where the reset goes to.

        Raises:
            click.UsageError: A time, or a line of the file, that can not be read.
        """
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


def actions_of(request: GroupsRequest) -> list[str]:
    """The actions that were chosen; --export is one when there is no other."""
    chosen = {
        "list": request.list_,
        "describe": request.describe,
        "delete": request.delete,
        "reset-offsets": request.reset_offsets,
        "delete-offsets": request.delete_offsets,
        "export": request.export and not request.reset_offsets,
        "pause": request.pause,
        "resume": request.resume,
        "import": request.import_,
    }
    return [name for name, is_chosen in chosen.items() if is_chosen]


def check(request: GroupsRequest) -> None:
    """Refuses what does not go together, with Kafka's rules.

    Raises:
        click.UsageError: Names the option and the fix.
    """
    actions = actions_of(request)
    if len(actions) != 1:
        raise click.UsageError(
            "give exactly one action: --list, --describe, --delete, --reset-offsets, "
            "--delete-offsets, --export, --import, --pause, --resume."
        )
    if request.groups_ and request.all_groups:
        raise click.UsageError("--group and --all-groups exclude each other.")
    (action,) = actions
    {
        "list": _check_list,
        "describe": _check_describe,
        "delete": _check_delete,
        "reset-offsets": _check_reset,
        "delete-offsets": _check_delete_offsets,
        "export": _check_export,
        "import": _check_import,
        "pause": _check_pause,
        "resume": _check_pause,
    }[action](request)
    _check_leftovers(request, action)


def _check_scope(request: GroupsRequest) -> None:
    if not request.groups_ and not request.all_groups:
        raise click.UsageError("name the group with --group, or give --all-groups.")


def _check_export(request: GroupsRequest) -> None:
    if request.to_consumer_group is None:
        _check_scope(request)
        return
    if len(request.groups_) != 1:
        raise click.UsageError("--export --to-consumer-group takes one --group.")
    _check_whole_topics(request, "--export --to-consumer-group")


def _check_import(request: GroupsRequest) -> None:
    if len(request.groups_) != 1:
        raise click.UsageError("--import takes one --group.")
    if (request.from_consumer_group is None) == (request.from_file is None):
        raise click.UsageError(
            "--import takes one of --from-consumer-group NAME and --from-file FILE (for a native "
            "share group what kafka-share-groups.sh --describe or --export prints)."
        )
    if request.from_file is None:
        _check_whole_topics(request, "--import")
    elif request.dry_run == request.execute:
        raise click.UsageError("--import takes one of --dry-run and --execute.")


def _check_whole_topics(request: GroupsRequest, action: str) -> None:
    if request.dry_run == request.execute:
        raise click.UsageError(f"{action} takes one of --dry-run and --execute.")
    partial = next((topic for topic in request.topics if ":" in topic), None)
    if partial is not None:
        raise click.UsageError(
            f"--topic {partial}: {action} takes whole topics; leave the partitions out."
        )


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
    partial = next((topic for topic in request.topics if ":" in topic), None)
    if partial is not None:
        raise click.UsageError(
            f"--topic {partial}: offsets are deleted for whole topics; leave the partitions out."
        )


def _check_pause(request: GroupsRequest) -> None:
    if len(request.groups_) != 1:
        raise click.UsageError("--pause and --resume take one --group.")
    parse_topics(request.topics)


def _check_reset(request: GroupsRequest) -> None:
    if request.dry_run == request.execute:
        raise click.UsageError("--reset-offsets takes one of --dry-run and --execute.")
    if len(request.groups_) != 1:
        raise click.UsageError("--reset-offsets takes one --group.")
    scenarios = request.scenarios()
    if len(scenarios) != 1:
        given = " and ".join(scenarios) or "none"
        raise click.UsageError(
            "--reset-offsets takes one of --to-earliest, --to-latest, --to-current, "
            f"--to-datetime, --by-duration, --to-offset, --from-file; given: {given}."
        )
    if request.topics and request.all_topics:
        raise click.UsageError("--topic and --all-topics exclude each other.")
    if not (request.topics or request.all_topics or request.from_file):
        raise click.UsageError("--reset-offsets takes --topic TOPIC[:0,1] or --all-topics.")
    parse_topics(request.topics)


def _check_leftovers(request: GroupsRequest, action: str) -> None:
    """Options that mean nothing with this action are refused, never ignored."""
    moves = action in ("reset-offsets", "import")
    to_kafka = action == "export" and request.to_consumer_group is not None
    refused: dict[str, bool] = {
        "--from-consumer-group": request.from_consumer_group is not None and action != "import",
        "--to-consumer-group": request.to_consumer_group is not None and action != "export",
        "--all-topics": request.all_topics and action != "reset-offsets",
    }
    if action != "describe":
        refused |= {"--members": request.members, "--offsets": request.offsets}
        refused["--verbose"] = request.verbose
    if action not in ("describe", "list"):
        refused["--state"] = request.state is not None
    if action != "reset-offsets":
        refused |= {name: name != "--from-file" or not moves for name in request.scenarios()}
    if not moves and not to_kafka:
        refused |= {
            "--dry-run": request.dry_run,
            "--execute": request.execute,
            "--force": request.force,
        }
    if not moves and not to_kafka and action not in ("delete-offsets", "pause", "resume"):
        refused["--topic"] = bool(request.topics)
    if action not in ("pause", "resume"):
        refused["--member"] = bool(request.member_ids)
    if action != "pause":
        refused["--reason"] = bool(request.reason)
    for name, is_given in refused.items():
        if is_given:
            raise click.UsageError(f"--{action} does not take {name}.")


def parse_topics(texts: Iterable[str]) -> dict[str, Sequence[int]]:
    """Reads `topic` and `topic:0,1`.

    Raises:
        click.UsageError: Neither of both.
    """
    found: dict[str, list[int]] = {}
    whole: set[str] = set()
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = [part.strip() for part in numbers.split(",")] if colon else []
        if not topic or any(not part.isdecimal() for part in parts):
            raise click.UsageError(f"--topic {text}: it must be TOPIC or TOPIC:0,1,2.")
        found.setdefault(topic, []).extend(int(part) for part in parts)
        if not parts:
            whole.add(topic)
    return {
        topic: [] if topic in whole else sorted(set(numbers)) for topic, numbers in found.items()
    }


def parse_datetime_ms(text: str, option: str = "--to-datetime") -> int:
    """Reads `YYYY-MM-DDThh:mm:ss.sss`, with or without a zone; UTC without, as Kafka's tools.

    Returns:
        Milliseconds since the epoch.

    Raises:
        click.UsageError: Not such a time.
    """
    try:
        found = datetime.fromisoformat(text.strip())
        if "T" not in text:
            raise ValueError("there is no time of day")
    except ValueError as error:
        raise click.UsageError(
            f"{option} {text}: {error}; it must be YYYY-MM-DDThh:mm:ss.sss, "
            "such as 2026-01-31T12:00:00.000."
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def parse_by_duration_ms(text: str) -> int:
    """Reads an ISO-8601 duration such as `PT1H30M` or `P1DT12H`, as Kafka's tools do.

    Raises:
        click.UsageError: Not such a duration.
    """
    from sharecoord.config.values import parse_iso_duration_ms

    try:
        return parse_iso_duration_ms(text.strip())
    except ValueError as error:
        raise click.UsageError(f"--by-duration {text}: it must be {error}.") from None
