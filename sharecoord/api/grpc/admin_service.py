"""AdminService of admin_service.proto: each call is the command of `Admin` by the same name.

A command's parameters are the fields of the request, and what it returns is the answer, by the
mapping of `sharecoord.wire`; the few names that differ stand in `NAMES`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from sharecoord.api.checks import (
    check_group_id,
    check_member_id,
    check_partition,
    check_reason,
    check_topics,
)
from sharecoord.api.grpc.access import Access
from sharecoord.api.grpc.calls import Call, unary
from sharecoord.core.dispatch.pauses import Pause
from sharecoord.core.letters.lanes import Mark, Replayed
from sharecoord.errors import InvalidRequestError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.descriptions import GroupView
from sharecoord.runtime.admin.migration import ExportCommand, ImportCommand
from sharecoord.runtime.admin.operators import Operators
from sharecoord.runtime.admin.replay import ReplayCommand
from sharecoord.runtime.letters.plan import LetterCommand
from sharecoord.security.principals import Caller
from sharecoord.wire import Mapper
from sharecoord.wire import admin_service_pb2 as pb

SERVICE: Final = pb.DESCRIPTOR.services_by_name["AdminService"]

NAMES: Final[Mapping[Any, Mapping[str, str]]] = {
    Admin.alter_group_configs: {"set_values": "set", "deleted": "delete"},
    Admin.list_dead_letters: {"wanted": "filter", "topic": "dead_letter_topic"},
    Admin.show_dead_letter: {"letter_id": "id", "topic": "dead_letter_topic"},
    Admin.withdraw_redrive: {"topic": "dead_letter_topic"},
    LetterCommand: {"wanted": "filter", "all_letters": "all", "topic": "dead_letter_topic"},
    ImportCommand: {"consumer_group": "from_consumer_group"},
    ExportCommand: {"consumer_group": "to_consumer_group"},
    ReplayCommand: {"from_ms": "from_timestamp_ms", "to_ms": "to_timestamp_ms"},
    Replayed: {"key": "partition", "start_offset": "first_offset"},
    GroupView: {"partitions": "offsets"},
    Pause: {"by": "paused_by"},
    Mark: {"at_ms": "marked_at_ms"},
}
"""Fields whose names differ, by command or class, then by parameter or attribute."""

MAPPER: Final = Mapper(names=NAMES)


def _each(check: Callable[[Any], object]) -> Callable[[Iterable[Any]], None]:
    def check_all(values: Iterable[Any]) -> None:
        for value in values:
            check(value)

    return check_all


def _check_topic(name: str) -> None:
    if name:
        check_topics([name])


def _check_topic_names(topics: Iterable[Any]) -> None:
    check_topics([each if isinstance(each, str) else each.topic for each in topics])


def _check_targets(targets: Iterable[pb.OffsetTarget]) -> None:
    for target in targets:
        check_topics([target.topic])
        _each(check_partition)(target.partitions)


def _check_named_partition(partition: Any) -> None:
    check_topics([partition.topic])
    check_partition(partition.partition)


CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "group_id": check_group_id,
    "group_ids": _each(check_group_id),
    "into_group_id": lambda name: check_group_id(name, "into_group_id"),
    "topics": _check_topic_names,
    "offsets": _check_topic_names,
    "to_offsets": lambda found: _check_topic_names(found.offsets),
    "dead_letter_topic": _check_topic,
    "place": lambda place: _check_topic(place.topic),
    "member_ids": _each(check_member_id),
    "PauseGroupRequest.topics": _check_targets,
    "PauseGroupRequest.reason": check_reason,
    "ResumeGroupRequest.topics": _check_targets,
    "ForceRecordsRequest.partition": _check_named_partition,
}
"""Checks of a field by its name, in every request or in the named one."""


class AdminService:
    """AdminService of admin_service.proto."""

    def __init__(self, operators: Operators, access: Access) -> None:
        self._operators = operators
        self._access = access

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Method handlers for `grpc.aio.Server.add_generic_rpc_handlers`."""
        handlers = {}
        for method in SERVICE.methods:
            question, answer = (
                getattr(pb, kind.name) for kind in (method.input_type, method.output_type)
            )
            call = self._method(method.name, answer)
            handlers[method.name] = unary(method.name, call, question, self._access.caller_of)
        return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def _method(self, method: str, answer: type[Message]) -> Call:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method).lower()
        command = getattr(Admin, name)
        hints = typing.get_type_hints(command)
        del hints["return"]

        async def call(request: Message, caller: Caller) -> Message:
            _check(request)
            try:
                arguments = _arguments(command, hints, request)
            except ValueError as error:
                raise InvalidRequestError(str(error)) from error
            return MAPPER.answer(answer, await self._operators.call(caller, name, arguments))

        return call


def _check(request: Message) -> None:
    for field in request.DESCRIPTOR.fields:
        check = CHECKS.get(f"{request.DESCRIPTOR.name}.{field.name}", CHECKS.get(field.name))
        if check is not None:
            check(getattr(request, field.name))


def _arguments(command: Any, hints: Mapping[str, Any], request: Message) -> dict[str, Any]:
    """The arguments of a command: fields of the request, or the whole request as a dataclass."""
    (name, first), *others = hints.items() or [("", None)]
    if not others and isinstance(first, type) and dataclasses.is_dataclass(first):
        return {name: MAPPER.read(first, request)}
    return MAPPER.read_fields(command, hints, request)
