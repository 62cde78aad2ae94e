"""The commands of `Admin` for callers: who may give which, and what the audit trail says of it.

Every protocol of operators calls `Operators.call`; nothing else calls a command for somebody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sharecoord.errors import InternalError, SharecoordError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.descriptions import GroupView
from sharecoord.runtime.admin.traces import is_told, trace_of
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.security.actions import (
    CLUSTER,
    Action,
    Resource,
    consumer_group,
    dead_letter_topic,
    group,
    topic,
)
from sharecoord.security.guard import Guard, Need, outcome_of, refusal
from sharecoord.security.principals import Caller

Arguments = Mapping[str, Any]
"""A command's arguments by the names of its parameters."""

DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
EXPORT_GROUP: Final = "share.offsets.export.group"
"""Settings of a group whose values name a place where the coordinator writes, by its own right."""


def _of_group(action: Action) -> Callable[[Arguments], Iterable[Need]]:
    return lambda given: [(action, group(given["group_id"]))]


def _settings(given: Arguments) -> Iterable[Need]:
    yield Action.CONFIGURE, group(given["group_id"])
    values: Mapping[str, str] = given["set_values"]
    if name := values.get(DEAD_LETTER_TOPIC, "").strip():
        yield Action.WRITE, dead_letter_topic(name)
    if name := values.get(EXPORT_GROUP, "").strip():
        yield Action.WRITE, consumer_group(name)


def _letters(given: Arguments) -> Iterable[Need]:
    yield Action.READ_PAYLOAD, group(given["group_id"])
    yield from _named_letters(given)


def _redrive(given: Arguments) -> Iterable[Need]:
    command = given.get("command")
    group_id = given["group_id"] if command is None else command.group_id
    yield Action.REDRIVE, group(group_id)
    yield from _named_letters(given if command is None else {"topic": command.topic})


def _named_letters(given: Arguments) -> Iterable[Need]:
    """A topic that the caller names in place of the group's own, which an operator has set."""
    place = given.get("place")
    for name in dict.fromkeys((given.get("topic", ""), place.topic if place else "")):
        if name:
            yield Action.READ, dead_letter_topic(name)


def _replay(given: Arguments) -> Iterable[Need]:
    command = given["command"]
    yield Action.REPLAY, group(command.group_id)
    yield Action.RESET, group(command.into_group_id)
    if command.with_settings:
        yield Action.CONFIGURE, group(command.into_group_id)
    for name in sorted({*command.topics, *(name for name, _ in command.spans)}):
        yield Action.CONSUME, topic(name)


def _import(given: Arguments) -> Iterable[Need]:
    yield Action.RESET, group(given["command"].group_id)
    yield Action.READ, consumer_group(given["command"].consumer_group)


def _export(given: Arguments) -> Iterable[Need]:
    yield Action.DESCRIBE, group(given["command"].group_id)
    yield Action.WRITE, consumer_group(given["command"].consumer_group)


def _reset(given: Arguments) -> Iterable[Need]:
    yield Action.RESET, group(given["command"].group_id)


def _coordinator(_: Arguments) -> Iterable[Need]:
    yield Action.DESCRIBE, CLUSTER


def _access(_: Arguments) -> Iterable[Need]:
    yield Action.AUDIT, CLUSTER


def _each(_: Arguments) -> Iterable[Need]:
    """Nothing: each thing is answered by itself (`EACH`)."""
    return ()


NEEDS: Final[Mapping[str, Callable[[Arguments], Iterable[Need]]]] = {
    "list_groups": _each,
    "describe_groups": _each,
    "describe_group_configs": _of_group(Action.DESCRIBE),
    "alter_group_configs": _settings,
    "reset_offsets": _reset,
    "delete_offsets": _of_group(Action.DELETE),
    "delete_groups": _each,
    "pause_group": _of_group(Action.PAUSE),
    "resume_group": _of_group(Action.PAUSE),
    "force_records": _of_group(Action.SETTLE),
    "list_in_flight": _of_group(Action.DESCRIBE),
    "replay": _replay,
    "list_dead_letters": _letters,
    "show_dead_letter": _letters,
    "redrive_dead_letters": _redrive,
    "discard_dead_letters": _redrive,
    "withdraw_redrive": _redrive,
    "block_keys": _of_group(Action.PAUSE),
    "unblock_keys": _of_group(Action.PAUSE),
    "list_blocked_keys": _of_group(Action.DESCRIBE),
    "import_offsets": _import,
    "export_offsets": _export,
    "describe_coordinator": _coordinator,
    "describe_access": _access,
}
"""What each command needs, from its arguments. A test holds it complete."""

EACH: Final = {
    "list_groups": Action.DESCRIBE,
    "describe_groups": Action.DESCRIBE,
    "delete_groups": Action.DELETE,
}
"""Commands about several groups, and what each of these groups has to be allowed by itself."""

MAKES: Final[Mapping[str, Callable[[Arguments], str]]] = {
    "alter_group_configs": lambda given: str(given["group_id"]),
    "block_keys": lambda given: str(given["group_id"]),
    "reset_offsets": lambda given: str(given["command"].group_id),
    "import_offsets": lambda given: str(given["command"].group_id),
    "replay": lambda given: str(given["command"].into_group_id),
}
"""Commands that make a group when there is none of that name."""

NAMES_ITS_CALLER: Final = frozenset(
    {"pause_group", "resume_group", "force_records", "block_keys", "unblock_keys"}
)
"""Commands that store, or tell in the event log, who gave them: their parameter `by`."""


class Operators:
    """Gives the commands of `Admin` for callers."""

    def __init__(self, admin: Admin, coordinator: Coordinator) -> None:
        self._admin = admin
        self._context = coordinator.context
        self._groups = coordinator.groups
        self._guard: Guard = coordinator.context.guard

    async def call(self, caller: Caller, command: str, arguments: Arguments) -> Any:
        """Gives a command, if the caller may; the audit trail hears of it.

        Args:
            caller: Who gives it.
            command: Its name.
            arguments: By the names of its parameters; `by` is not one of them.

        Raises:
            UnauthorizedError: The rules do not let the caller.
            QuotaExceededError: The caller gives more commands than it may.
            SharecoordError: As the command.
        """
        result, problem = None, None
        try:
            self._guard.quotas.check_call(caller.principal)
            self._guard.check(caller, NEEDS[command](arguments))
            made = MAKES[command](arguments) if command in MAKES else ""
            is_new = bool(made) and made not in self._groups
            if is_new:
                self._groups.admission.check_group(caller)
            result = await self._give(caller, command, arguments)
            if is_new and (found := self._groups.get(made)) is not None:
                await self._note_maker(found, caller)
        except SharecoordError as error:
            problem = error
            raise
        except asyncio.CancelledError:
            problem = InternalError("the caller went away; a change goes on without it")
            raise
        except Exception as error:
            problem = InternalError(f"{type(error).__name__}; the coordinator's log says why")
            raise
        finally:
            if is_told(command, outcome_of(problem)):
                trace = trace_of(command, arguments, result)
                self._guard.tell(
                    caller,
                    command,
                    problem,
                    resources=trace.resources,
                    asked=trace.asked,
                    before=trace.before,
                    after=trace.after,
                )
        return result

    async def _give(self, caller: Caller, command: str, arguments: Arguments) -> Any:
        if command == "list_groups":
            listed = await self._admin.list_groups(**arguments)
            return [each for each in listed if self._may_see(caller, each.group_id)]
        if command == "describe_groups":
            return await self._described(caller, **arguments)
        if command == "delete_groups":
            return await self._deleted(caller, **arguments)
        by = {"by": caller.principal.name} if command in NAMES_ITS_CALLER else {}
        return await getattr(self._admin, command)(**arguments, **by)

    async def _note_maker(self, made: GroupActor, caller: Caller) -> None:
        """Stores who made a group, for the principal's quota."""
        name = caller.principal.name
        store = self._context.store
        made.made_by = name
        await self._context.caller.call(store.ensure_group, made.group_id, made_by=name)

    def may(self, caller: Caller, action: Action, group_id: str) -> bool:
        """Whether a caller may do something with a group; the audit trail does not hear of it."""
        return self._guard.decide(caller, action, group(group_id)).is_allowed

    def _may_see(self, caller: Caller, group_id: str) -> bool:
        return self.may(caller, Action.DESCRIBE, group_id)

    async def _described(
        self, caller: Caller, group_ids: Sequence[str] = (), **options: bool
    ) -> list[GroupView]:
        """The groups that the caller may see; those that it names and may not have an error."""
        if not group_ids:
            listed = await self._admin.list_groups()
            seen = [each.group_id for each in listed if self._may_see(caller, each.group_id)]
            return await self._admin.describe_groups(seen, **options) if seen else []
        refused = self._refused(caller, "describe_groups", group_ids)
        allowed = [each for each in group_ids if each not in refused]
        views = await self._admin.describe_groups(allowed, **options) if allowed else []
        found = {view.group_id: view for view in views}
        found |= {name: GroupView(name, error=error) for name, error in refused.items()}
        return [found[name] for name in dict.fromkeys(group_ids)]

    async def _deleted(
        self, caller: Caller, group_ids: Sequence[str]
    ) -> dict[str, SharecoordError | None]:
        """Deletes the groups that the caller may delete; the others have an error."""
        refused = self._refused(caller, "delete_groups", group_ids)
        allowed = [each for each in group_ids if each not in refused]
        results: dict[str, SharecoordError | None] = {}
        if allowed or not refused:
            results = await self._admin.delete_groups(allowed)
        return {**results, **refused}

    def _refused(
        self, caller: Caller, command: str, group_ids: Sequence[str]
    ) -> dict[str, SharecoordError]:
        """The error of each group with which the caller may not do this; the trail hears of it."""
        action = EACH[command]
        refused: dict[str, SharecoordError] = {}
        for group_id in dict.fromkeys(group_ids):
            what: Resource = group(group_id)
            decision = self._guard.decide(caller, action, what)
            if not decision.is_allowed:
                error = refused[group_id] = refusal(caller, action, what, decision)
                self._guard.tell(caller, command, error, resources=[str(what)])
        return refused
