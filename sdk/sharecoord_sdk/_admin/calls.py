"""Calls of AdminService: how an admin client's arguments become the fields of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message

from sharecoord_sdk._core.texts import to_bytes
from sharecoord_sdk._messages import Mapper
from sharecoord_sdk._proto import admin_service_pb2 as pb

from .errors import item_error
from .types import DeadLetterFilter, ResetTo

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["AdminService"]

MAPPER: Final = Mapper(item_error)

#: Methods whose names begin so change nothing.
_READING: Final = ("Describe", "List", "Show")

Topics = Mapping[str, Sequence[int]] | Iterable[str]
"""Topic names, or topic to its partitions (none = all)."""


class Call(NamedTuple):
    """A call of a service: its method, its request, and how its answer is read."""

    path: str
    """The method as grpc names it."""
    request: Message
    decode: Callable[[bytes], Any]
    """Reads an answer."""
    is_safe: bool
    """Whether it changes nothing, so that another coordinator may be asked."""


def admin_call(method: str, fields: Mapping[str, Any]) -> Call:
    """A call of AdminService with these fields in its request."""
    found = _SERVICE.methods_by_name[method]
    request: type[Message] = getattr(pb, found.input_type.name)
    answer: type[Message] = getattr(pb, found.output_type.name)
    path = f"/{_SERVICE.full_name}/{method}"
    is_safe = method.startswith(_READING) or bool(fields.get("dry_run"))
    return Call(path, MAPPER.make(request, **fields), answer.FromString, is_safe)


def names_of(argument: str, names: Iterable[str]) -> list[str]:
    """Names of a request; one text is not a list of them."""
    if isinstance(names, str):
        raise TypeError(f"{argument} is one str; give a list of them")
    return list(names)


def targets_of(topics: Topics) -> list[tuple[str, Sequence[int]]]:
    if isinstance(topics, Mapping):
        return list(topics.items())
    return [(topic, ()) for topic in names_of("topics", topics)]


def keys_of(keys: Iterable[bytes | str]) -> list[bytes]:
    """Keys of records; text stands for its UTF-8."""
    if isinstance(keys, (bytes, str)):
        raise TypeError(f"keys is one {type(keys).__name__}; give a list of them")
    return [to_bytes("each of keys", k) if isinstance(k, str) else bytes(k) for k in keys]


def filter_of(wanted: DeadLetterFilter | None) -> DeadLetterFilter:
    """The filter, once its lists are known not to be single texts."""
    wanted = wanted or DeadLetterFilter()
    for name in ("reasons", "ids"):
        names_of(name, getattr(wanted, name))
    return wanted


def reset_fields(to: ResetTo) -> dict[str, Any]:
    """The field of a reset request that says where the start offsets go."""
    if to.kind == "to_offsets":
        return {to.kind: {"offsets": to.by_partition}}
    return {to.kind: True if to.kind in ("to_earliest", "to_latest", "to_current") else to.value}


def config_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
