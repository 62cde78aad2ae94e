"""Calls of AdminService: what the methods of both admin clients send, and read in the answers.

A function here makes a call; a client makes a method of it, which sends it. To add a call, add its
function here, and its line to each client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from types import NoneType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message

from sharecoord_sdk._core.texts import escaped_text, to_bytes
from sharecoord_sdk._messages import Mapper
from sharecoord_sdk._proto import admin_service_pb2 as pb

from .errors import AdminError, item_error
from .types import (
    AccessDescription,
    BlockedKey,
    ConfigEntry,
    CoordinatorDescription,
    DeadLetterDetails,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLettersResult,
    ExportedOffsets,
    ForceAction,
    ForcedRange,
    GroupDescription,
    GroupListing,
    GroupState,
    ImportedOffsets,
    InFlightRange,
    PauseAnswer,
    ReplayedPartition,
    ReplayOf,
    ResetResult,
    ResetTo,
)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["AdminService"]

MAPPER: Final = Mapper(item_error)

#: Methods whose names begin so change nothing.
_READING: Final = ("Describe", "List", "Show")

Topics = Mapping[str, Sequence[int]] | Iterable[str]
"""Topic names, or topic to its partitions (none = all)."""


class Call(NamedTuple, Generic[T]):
    """A call of a service: its method, its request, and how its answer is read."""

    path: str
    """The method as grpc names it."""
    request: Message
    answer: type[Message]
    read: Callable[[Any], T]
    """Makes the value of an answer."""
    is_safe: bool
    """Whether it changes nothing, so that another coordinator may be asked."""


def call(method: str, result: type[T], **fields: Any) -> Call[T]:
    """A call of AdminService with these fields in its request."""
    found = _SERVICE.methods_by_name[method]
    request: type[Message] = getattr(pb, found.input_type.name)
    return Call(
        f"/{_SERVICE.full_name}/{method}",
        MAPPER.make(request, **fields),
        getattr(pb, found.output_type.name),
        partial(MAPPER.read, result),
        is_safe=method.startswith(_READING) or bool(fields.get("dry_run")),
    )


def looks_like(make: Callable[..., Call[Any]]) -> Callable[[F], F]:
    """Gives a client's method the name, text and parameters of the function that makes its call."""

    def decorate(method: F) -> F:
        shown: Any = wraps(make)(method)
        signature = inspect.signature(make)
        client = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        shown.__signature__ = signature.replace(
            parameters=[client, *signature.parameters.values()],
            return_annotation=signature.return_annotation.removeprefix("Call[").removesuffix("]"),
        )
        return method

    return decorate


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


# -- the calls ------------------------------------------------------------------------------------


def list_groups(states: Iterable[GroupState] = ()) -> Call[list[GroupListing]]:
    """All groups by name; with `states` those in one of them."""
    states = [GroupState(state) for state in states]
    return call("ListGroups", list[GroupListing], states=states)


def describe_groups(
    group_ids: Iterable[str] = (), *, members: bool = True, offsets: bool = True
) -> Call[list[GroupDescription]]:
    """State, members and offsets of groups; of all when none is named.

    A group that does not exist is in the result, with state DEAD and its error.
    """
    return call(
        "DescribeGroups",
        list[GroupDescription],
        group_ids=names_of("group_ids", group_ids),
        include_members=members,
        include_offsets=offsets,
    )


def describe_group_configs(group_id: str) -> Call[list[ConfigEntry]]:
    """Every setting of a group with its source; also before the group exists."""
    return call("DescribeGroupConfigs", list[ConfigEntry], group_id=group_id)


def alter_group_configs(
    group_id: str,
    set_values: Mapping[str, object] | None = None,
    delete: Iterable[str] = (),
    *,
    validate_only: bool = False,
) -> Call[None]:
    """Sets and deletes settings, all or nothing; also before the group exists.

    Raises:
        InvalidConfigError: Names the setting and what is allowed.
    """
    return call(
        "AlterGroupConfigs",
        NoneType,
        group_id=group_id,
        set={name: config_text(value) for name, value in (set_values or {}).items()},
        delete=names_of("delete", delete),
        validate_only=validate_only,
    )


def reset_offsets(
    group_id: str,
    to: ResetTo,
    topics: Topics = (),
    *,
    dry_run: bool = False,
    force: bool = False,
) -> Call[list[ResetResult]]:
    """Moves start offsets, what is in flight is forgotten.

    A group that does not exist is made when topics are named; no topics = all for which it has
    offsets. `dry_run` only says what would happen. `force` resets while members are connected,
    too; their locks on these partitions are void. Look at the `error` of each result.

    Raises:
        GroupNotEmptyError: The group has members, and `force` is not set.
    """
    return call(
        "ResetOffsets",
        list[ResetResult],
        group_id=group_id,
        topics=targets_of(topics),
        dry_run=dry_run,
        force=force,
        **reset_fields(to),
    )


def delete_offsets(group_id: str, topics: Iterable[str]) -> Call[dict[str, AdminError | None]]:
    """Forgets the state of whole topics; the reset policy decides where they start again.

    Returns:
        Topic to None (done) or its error.

    Raises:
        GroupNotFoundError: There is no such group.
        GroupNotEmptyError: A member subscribes to one of the topics.
    """
    return call(
        "DeleteOffsets",
        dict[str, AdminError | None],
        group_id=group_id,
        topics=names_of("topics", topics),
    )


def delete_groups(group_ids: Iterable[str]) -> Call[dict[str, AdminError | None]]:
    """Deletes groups without members, with their offsets and settings.

    Returns:
        Group to None (done) or its error.
    """
    return call(
        "DeleteGroups",
        dict[str, AdminError | None],
        group_ids=names_of("group_ids", group_ids),
    )


def pause_group(
    group_id: str,
    topics: Topics = (),
    members: Iterable[str] = (),
    *,
    reason: str = "",
) -> Call[PauseAnswer]:
    """Pauses a group, topics, partitions or members: they give, or get, nothing new.

    Without topics and members it is the group itself. All or nothing; what is paused already
    stays as it is, and its result says so. `reason` is shown to people.

    Raises:
        GroupNotFoundError: There is no such group.
        UnknownTopicOrPartitionError: There is no such topic or partition.
        AdminError: There is no such member (UNKNOWN_MEMBER).
    """
    return call(
        "PauseGroup",
        PauseAnswer,
        group_id=group_id,
        topics=targets_of(topics),
        member_ids=names_of("members", members),
        reason=escaped_text(reason),
    )


def resume_group(
    group_id: str, topics: Topics = (), members: Iterable[str] = ()
) -> Call[PauseAnswer]:
    """Ends pauses, exactly those that are named; arguments as of `pause_group`.

    Raises:
        GroupNotFoundError: There is no such group.
    """
    return call(
        "ResumeGroup",
        PauseAnswer,
        group_id=group_id,
        topics=targets_of(topics),
        member_ids=names_of("members", members),
    )


def force_records(
    group_id: str,
    topic: str,
    partition: int,
    first_offset: int,
    last_offset: int,
    action: ForceAction,
    *,
    dry_run: bool = False,
) -> Call[list[ForcedRange]]:
    """Skips, finishes or releases records, whoever holds them: their locks are dead.

    `last_offset` is inclusive; the records need not have been read yet; 100000 are the most.
    `dry_run` only says what would happen. The answer says what became of them, by offset.

    Raises:
        GroupNotFoundError: There is no such group.
        UnknownTopicOrPartitionError: The group has no such share-partition.
        InvalidRequestError: The range is not in the log, or too long.
    """
    return call(
        "ForceRecords",
        list[ForcedRange],
        group_id=group_id,
        partition=(topic, partition),
        first_offset=first_offset,
        last_offset=last_offset,
        action=ForceAction(action),
        dry_run=dry_run,
    )


def list_in_flight(
    group_id: str,
    topic: str,
    partition: int,
    *,
    from_offset: int = 0,
    max_ranges: int = 1000,
) -> Call[list[InFlightRange]]:
    """Ranges in flight by offset; go on with the last one's `last_offset + 1`.

    Raises:
        GroupNotFoundError: There is no such group.
        UnknownTopicOrPartitionError: The group has no such share-partition.
    """
    return call(
        "ListInFlight",
        list[InFlightRange],
        group_id=group_id,
        partition=(topic, partition),
        from_offset=from_offset,
        max_ranges=max_ranges,
    )


def replay(
    group_id: str,
    into: str,
    what: ReplayOf,
    topics: Topics = (),
    *,
    rate_per_s: int = 0,
    with_settings: bool = False,
    dry_run: bool = False,
) -> Call[list[ReplayedPartition]]:
    """Delivers a part of topics' logs to a side group, which members join as any other.

    `into` is a new name, or a group whose replay is finished; `with_settings` gives it the
    settings of the group. With single offsets no topics are needed. `rate_per_s` counts all
    partitions together, 0 = no limit. `dry_run` only says what would happen. The answer has the
    side group's share-partitions.

    Raises:
        GroupNotFoundError: There is no such group.
        GroupNotEmptyError: The side group has members, or records of its own.
        UnknownTopicOrPartitionError: A topic or partition that the cluster does not have.
        InvalidRequestError: Bad times, offsets outside of the log, or a bad rate.
    """
    return call(
        "Replay",
        list[ReplayedPartition],
        group_id=group_id,
        into_group_id=into,
        topics=targets_of(topics),
        from_timestamp_ms=what.from_ms,
        to_timestamp_ms=what.to_ms,
        duration_ms=what.duration_ms,
        offsets=what.ranges,
        rate_per_s=rate_per_s,
        with_settings=with_settings,
        dry_run=dry_run,
    )


def list_dead_letters(
    group_id: str,
    wanted: DeadLetterFilter | None = None,
    *,
    max_letters: int = 100,
    after: str = "",
    dead_letter_topic: str = "",
) -> Call[DeadLetterPage]:
    """Dead letters of a group, those first that wait for their topic; go on with `next`.

    A page reads for some seconds at most: it may have fewer letters than asked for, even none,
    although there are more. `max_letters` is 1 to 1000, `after` the `next` of the former page;
    without a `dead_letter_topic` it is the one of the group's settings.

    Raises:
        GroupNotFoundError: There is no such group.
        InvalidConfigError: It has no dead-letter topic, and none is named.
        InvalidRequestError: The filter is bad; the field is named.
    """
    return call(
        "ListDeadLetters",
        DeadLetterPage,
        group_id=group_id,
        filter=filter_of(wanted),
        max_letters=max_letters,
        after=after,
        dead_letter_topic=dead_letter_topic,
    )


def show_dead_letter(
    group_id: str,
    letter_id: str = "",
    *,
    place: tuple[int, int] | None = None,
    dead_letter_topic: str = "",
) -> Call[DeadLetterDetails]:
    """Reads one whole letter, by its id or (quicker) by partition and offset in the topic.

    Raises:
        UnknownDeadLetterError: The group has no such letter.
    """
    return call(
        "ShowDeadLetter",
        DeadLetterDetails,
        group_id=group_id,
        id=letter_id if place is None else None,
        place=None if place is None else ("", *place),
        dead_letter_topic=dead_letter_topic,
    )


def redrive_dead_letters(
    group_id: str,
    wanted: DeadLetterFilter | None = None,
    *,
    all_letters: bool = False,
    dry_run: bool = False,
    rate_per_s: int = 0,
    again: bool = False,
    discarded: bool = False,
    max_letters: int = 0,
    dead_letter_topic: str = "",
) -> Call[DeadLettersResult]:
    """Delivers letters to their group again, each once, with a new count.

    They come to the members that subscribe to the topic they came from, and to nobody else. It
    is durable when this returns; the same call again takes those that are left.

    Args:
        group_id: The group whose letters they are.
        wanted: Which ones.
        all_letters: All are meant; needed without `wanted`.
        dry_run: Only say what would happen.
        rate_per_s: Records per second of all together; 0 = no limit.
        again: Also those that were redriven before.
        discarded: Also those that were discarded before.
        max_letters: 1 to 250000; 0 = as many as one call takes.
        dead_letter_topic: "" = the one of the group's settings.

    Raises:
        InvalidRequestError: The filter is empty or bad; the field is named.
    """
    return call(
        "RedriveDeadLetters",
        DeadLettersResult,
        group_id=group_id,
        filter=filter_of(wanted),
        all=all_letters,
        dry_run=dry_run,
        rate_per_s=rate_per_s,
        again=again,
        discarded=discarded,
        max_letters=max_letters,
        dead_letter_topic=dead_letter_topic,
    )


def discard_dead_letters(
    group_id: str,
    wanted: DeadLetterFilter | None = None,
    *,
    all_letters: bool = False,
    dry_run: bool = False,
    max_letters: int = 0,
    dead_letter_topic: str = "",
) -> Call[DeadLettersResult]:
    """Marks letters as done with: no redrive takes them unless asked to.

    Arguments and errors as `redrive_dead_letters`.
    """
    return call(
        "DiscardDeadLetters",
        DeadLettersResult,
        group_id=group_id,
        filter=filter_of(wanted),
        all=all_letters,
        dry_run=dry_run,
        max_letters=max_letters,
        dead_letter_topic=dead_letter_topic,
    )


def withdraw_redrive(group_id: str, *, dead_letter_topic: str = "") -> Call[int]:
    """Takes back what was redriven and never handed out; a later redrive takes it again.

    Returns:
        How many letters.
    """
    return call("WithdrawRedrive", int, group_id=group_id, dead_letter_topic=dead_letter_topic)


def block_keys(group_id: str, keys: Iterable[bytes | str], *, reason: str = "") -> Call[None]:
    """Hands out nothing of these keys from now on; what is under a lock runs on.

    Args:
        group_id: The group; it need not exist yet, but must have `share.ordering=key`.
        keys: Keys of records; text stands for its UTF-8.
        reason: Why, for people. A key that is blocked already gets it, and keeps its time.

    Raises:
        InvalidRequestError: The group keeps no order by key, or a key is too long.
    """
    return call(
        "BlockKeys",
        NoneType,
        group_id=group_id,
        keys=keys_of(keys),
        reason=escaped_text(reason),
    )


def unblock_keys(group_id: str, keys: Iterable[bytes | str]) -> Call[list[bytes]]:
    """Hands out records of these keys again, in their order.

    Returns:
        Those that were not blocked.

    Raises:
        GroupNotFoundError: There is no such group.
    """
    return call("UnblockKeys", list[bytes], group_id=group_id, keys=keys_of(keys))


def list_blocked_keys(group_id: str) -> Call[list[BlockedKey]]:
    """The blocked keys of a group by key, with what waits for each.

    Raises:
        GroupNotFoundError: There is no such group.
    """
    return call("ListBlockedKeys", list[BlockedKey], group_id=group_id)


def import_offsets(
    group_id: str,
    consumer_group: str,
    topics: Iterable[str] = (),
    *,
    dry_run: bool = False,
    force: bool = False,
) -> Call[list[ImportedOffsets]]:
    """Sets start offsets to what a consumer group of Kafka has committed.

    The share group need not exist yet; no topics = all for which the consumer group has
    committed something. `dry_run` only says what would happen; `force` imports while one of
    both groups has members, too.

    Raises:
        GroupNotEmptyError: One of both has, and `force` is not set.
        InvalidRequestError: The consumer group has committed nothing.
    """
    return call(
        "ImportOffsets",
        list[ImportedOffsets],
        group_id=group_id,
        from_consumer_group=consumer_group,
        topics=names_of("topics", topics),
        dry_run=dry_run,
        force=force,
    )


def export_offsets(
    group_id: str,
    consumer_group: str,
    topics: Iterable[str] = (),
    *,
    dry_run: bool = False,
    force: bool = False,
) -> Call[list[ExportedOffsets]]:
    """Commits start offsets for a consumer group of Kafka, which must have no members.

    A new consumer group is made; no topics = all for which the share group has offsets.
    `dry_run` only says what would happen; `force` exports while the share group has members.

    Raises:
        GroupNotFoundError: There is no such share group.
        GroupNotEmptyError: One of both groups has members.
    """
    return call(
        "ExportOffsets",
        list[ExportedOffsets],
        group_id=group_id,
        to_consumer_group=consumer_group,
        topics=names_of("topics", topics),
        dry_run=dry_run,
        force=force,
    )


def describe_access(
    principal: str, action: str, resource: str, *, principal_groups: Sequence[str] = ()
) -> Call[AccessDescription]:
    """Whether a principal may do something, and by which line of the coordinator's rules.

    Args:
        principal: Such as `User:alice`.
        action: Such as `consume` or `describe`.
        resource: Such as `group:orders`, `topic:orders` or `cluster`.
        principal_groups: The groups that its identity provider names.
    """
    return call(
        "DescribeAccess",
        AccessDescription,
        principal=principal,
        principal_groups=list(principal_groups),
        action=action,
        resource=resource,
    )


def describe_coordinator() -> Call[CoordinatorDescription]:
    """The coordinator that answers: version, Kafka cluster, store, uptime."""
    return call("DescribeCoordinator", CoordinatorDescription)
