"""`AdminClient` and `AsyncAdminClient`: groups, their members, offsets and settings.

    from sharecoord_sdk import AdminClient
    from sharecoord_sdk.admin import ResetTo

    with AdminClient({"bootstrap.servers": "localhost:7070"}) as admin:
        admin.alter_group_configs("workers", {"share.auto.offset.reset": "earliest"})
        admin.reset_offsets("workers", ResetTo.earliest(), ["orders"])
        for group in admin.describe_groups():
            print(group.group_id, group.state.value, sum(p.lag or 0 for p in group.offsets))

The configuration is the one of `ShareConsumer` (address, TLS, credentials), and
`default.api.timeout.ms` is the time for one call. Every call raises an `AdminError` when it fails
as a whole; what fails for one group, topic or partition only stands in the result, as an
`AdminError` too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

# Before grpc: it sets what grpc reads when it is imported.
from ._grpc import failure_of, open_aio_channel, open_channel  # isort: skip
import grpc
from google.protobuf.message import Message
from grpc import aio

from ._admin import calls
from ._admin.calls import Call, Topics
from ._admin.errors import (
    AdminError,
    AuthorizationError,
    CoordinatorUnavailableError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    NotACoordinatorError,
    UnknownDeadLetterError,
    UnknownTopicOrPartitionError,
    kafka_broker,
)
from ._admin.force import AsyncForceCalls, ForceCalls
from ._admin.keys import BlockedKey
from ._admin.letter_types import (
    DeadLetter,
    DeadLetterDetails,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLettersResult,
    DeadLetterState,
)
from ._admin.letters import AsyncLetterCalls, SyncLetterCalls
from ._admin.migration import AsyncMigrationCalls, ExportedOffsets, ImportedOffsets, MigrationCalls
from ._admin.probe import speaks_kafka
from ._admin.route import Route
from ._admin.types import (
    ConfigEntry,
    ConfigSource,
    CoordinatorDescription,
    ForceAction,
    ForcedRange,
    GroupDescription,
    GroupListing,
    GroupState,
    InFlightRange,
    MemberDescription,
    PartitionOffsets,
    Pause,
    PauseAnswer,
    PauseResult,
    RecordState,
    ReplayedPartition,
    ReplayOf,
    ResetResult,
    ResetTo,
)

__all__ = [
    "AdminClient",
    "AdminError",
    "AsyncAdminClient",
    "AuthorizationError",
    "BlockedKey",
    "ConfigEntry",
    "ConfigSource",
    "CoordinatorDescription",
    "CoordinatorUnavailableError",
    "DeadLetter",
    "DeadLetterDetails",
    "DeadLetterFilter",
    "DeadLetterPage",
    "DeadLetterState",
    "DeadLettersResult",
    "ExportedOffsets",
    "ForceAction",
    "ForcedRange",
    "GroupDescription",
    "GroupListing",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "GroupState",
    "ImportedOffsets",
    "InFlightRange",
    "InvalidConfigError",
    "InvalidRequestError",
    "MemberDescription",
    "NotACoordinatorError",
    "PartitionOffsets",
    "Pause",
    "PauseAnswer",
    "PauseResult",
    "RecordState",
    "ReplayOf",
    "ReplayedPartition",
    "ResetResult",
    "ResetTo",
    "UnknownDeadLetterError",
    "UnknownTopicOrPartitionError",
]

T = TypeVar("T")


def _encode(request: Message) -> bytes:
    return request.SerializeToString()


class AdminClient(SyncLetterCalls, ForceCalls, MigrationCalls):
    """Admin calls on grpc's synchronous stack. Thread-safe; make one in each process.

    The constructor starts nothing; the connection opens at the first call.

    Args:
        config: Keys of `ShareConsumer`; `group.id` is not needed. Keywords are added to it.

    Raises:
        TypeError: Not a dict.
        InvalidConfigError: An unknown key, or a value out of bounds.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._route = Route(args, kwargs)
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._route.close()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """All groups by name; with `states` those in one of them."""
        return self._run(calls.list_groups(states))

    def describe_groups(
        self, group_ids: Iterable[str] = (), *, members: bool = True, offsets: bool = True
    ) -> list[GroupDescription]:
        """State, members and offsets of groups; of all when none is named.

        A group that does not exist is in the result, with state DEAD and its error.
        """
        return self._run(calls.describe_groups(group_ids, members=members, offsets=offsets))

    def describe_group_configs(self, group_id: str) -> list[ConfigEntry]:
        """Every setting of a group with its source; also before the group exists."""
        return self._run(calls.describe_group_configs(group_id))

    def alter_group_configs(
        self,
        group_id: str,
        set_values: Mapping[str, object] | None = None,
        delete: Iterable[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """Sets and deletes settings, all or nothing; also before the group exists.

        Raises:
            InvalidConfigError: Names the setting and what is allowed.
        """
        call = calls.alter_group_configs(
            group_id, set_values or {}, delete, validate_only=validate_only
        )
        self._run(call)

    def reset_offsets(
        self,
        group_id: str,
        to: ResetTo,
        topics: Topics = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ResetResult]:
        """Moves start offsets, what is in flight is forgotten.

        Args:
            group_id: The group; it need not exist yet when topics are named.
            to: Where to.
            topics: Names, or name to partitions; none = all topics that have offsets.
            dry_run: Only say what would happen.
            force: Also while members are connected; their locks on these partitions are void.

        Returns:
            A result for each partition; look at its `error`.

        Raises:
            GroupNotEmptyError: The group has members, and `force` is not set.
        """
        return self._run(calls.reset_offsets(group_id, to, topics, dry_run=dry_run, force=force))

    def pause_group(
        self, group_id: str, topics: Topics = (), members: Iterable[str] = (), *, reason: str = ""
    ) -> PauseAnswer:
        """Pauses a group, topics, partitions or members: they give, or get, nothing new.

        All or nothing; what is paused already stays as it is, and its result says so.

        Args:
            group_id: The group.
            topics: Names, or name to partitions. Without topics and members the group itself.
            members: Member ids.
            reason: Why, in words.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: There is no such topic or partition.
            AdminError: There is no such member (UNKNOWN_MEMBER).
        """
        return self._run(calls.pause_group(group_id, topics, members, reason))

    def resume_group(
        self, group_id: str, topics: Topics = (), members: Iterable[str] = ()
    ) -> PauseAnswer:
        """Ends pauses, exactly those that are named; arguments as of `pause_group`.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        return self._run(calls.resume_group(group_id, topics, members))

    def replay(
        self,
        group_id: str,
        into: str,
        what: ReplayOf,
        topics: Topics = (),
        *,
        rate_per_s: int = 0,
        with_settings: bool = False,
        dry_run: bool = False,
    ) -> list[ReplayedPartition]:
        """Delivers a part of topics' logs to a side group, which members join as any other.

        Args:
            group_id: Whose records they are.
            into: The side group: a new name, or one whose replay is finished.
            what: A range of times, or single offsets.
            topics: Names, or name to partitions; not needed with offsets.
            rate_per_s: Records per second of all partitions together; 0 = no limit.
            with_settings: Whether the side group gets the settings of the group.
            dry_run: Only say what would happen.

        Returns:
            The side group's share-partitions.

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: The side group has members, or records of its own.
            UnknownTopicOrPartitionError: A topic or partition that the cluster does not have.
            InvalidRequestError: Bad times, offsets outside of the log, or a bad rate.
        """
        call = calls.replay(
            group_id,
            into,
            what,
            topics,
            rate_per_s=rate_per_s,
            with_settings=with_settings,
            dry_run=dry_run,
        )
        return self._run(call)

    def delete_offsets(self, group_id: str, topics: Iterable[str]) -> dict[str, AdminError | None]:
        """Forgets the state of whole topics; the reset policy decides where they start again.

        Returns:
            Topic to None (done) or its error.

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: A member subscribes to one of the topics.
        """
        return self._run(calls.delete_offsets(group_id, topics))

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, AdminError | None]:
        """Deletes groups without members, with their offsets and settings.

        Returns:
            Group to None (done) or its error.
        """
        return self._run(calls.delete_groups(group_ids))

    def list_in_flight(
        self,
        group_id: str,
        topic: str,
        partition: int,
        *,
        from_offset: int = 0,
        max_ranges: int = 1000,
    ) -> list[InFlightRange]:
        """Ranges in flight by offset; go on with the last one's `last_offset + 1`.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: The group has no such share-partition.
        """
        return self._run(
            calls.list_in_flight(
                group_id, topic, partition, from_offset=from_offset, max_ranges=max_ranges
            )
        )

    def describe_coordinator(self) -> CoordinatorDescription:
        """The coordinator that answers: version, Kafka cluster, store, uptime."""
        return self._run(calls.describe_coordinator())

    def _run(self, call: Call[T]) -> T:
        route = self._route
        route.check()
        if route.must_be_found(call):
            self._run(calls.describe_coordinator())
        error: AdminError | None = None
        for address in route.addresses(call):
            try:
                answer = self._send(address, call)
            except grpc.RpcError as raised:
                failure = failure_of(raised)
                error = route.failed(failure, address)
                if route.may_be_kafka(failure) and speaks_kafka(address):
                    error = kafka_broker(address)
                if not route.is_silent(failure):
                    break
            else:
                route.answered(address)
                return call.read(answer)
        assert error is not None, "there is one address at least"
        raise error

    def _send(self, address: str, call: Call[Any]) -> Message:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = open_channel(address, self._route.config.tls)
        method = channel.unary_unary(
            call.path, request_serializer=_encode, response_deserializer=call.decode
        )
        answer: Message = method(
            call.request,
            timeout=self._route.config.api_timeout_s,
            metadata=self._route.metadata(),
        )
        return answer


class AsyncAdminClient(AsyncLetterCalls, AsyncForceCalls, AsyncMigrationCalls):
    """The same calls on grpc.aio, awaited. Use it in one event loop.

    Args:
        config: As `AdminClient`.

    Raises:
        TypeError: Not a dict.
        InvalidConfigError: An unknown key, or a value out of bounds.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._route = Route(args, kwargs)
        self._channels: dict[str, aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._route.close()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    async def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """As `AdminClient.list_groups`."""
        return await self._run(calls.list_groups(states))

    async def describe_groups(
        self, group_ids: Iterable[str] = (), *, members: bool = True, offsets: bool = True
    ) -> list[GroupDescription]:
        """As `AdminClient.describe_groups`."""
        return await self._run(calls.describe_groups(group_ids, members=members, offsets=offsets))

    async def describe_group_configs(self, group_id: str) -> list[ConfigEntry]:
        """As `AdminClient.describe_group_configs`."""
        return await self._run(calls.describe_group_configs(group_id))

    async def alter_group_configs(
        self,
        group_id: str,
        set_values: Mapping[str, object] | None = None,
        delete: Iterable[str] = (),
        *,
        validate_only: bool = False,
    ) -> None:
        """As `AdminClient.alter_group_configs`."""
        call = calls.alter_group_configs(
            group_id, set_values or {}, delete, validate_only=validate_only
        )
        await self._run(call)

    async def reset_offsets(
        self,
        group_id: str,
        to: ResetTo,
        topics: Topics = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ResetResult]:
        """As `AdminClient.reset_offsets`."""
        call = calls.reset_offsets(group_id, to, topics, dry_run=dry_run, force=force)
        return await self._run(call)

    async def pause_group(
        self, group_id: str, topics: Topics = (), members: Iterable[str] = (), *, reason: str = ""
    ) -> PauseAnswer:
        """As `AdminClient.pause_group`."""
        return await self._run(calls.pause_group(group_id, topics, members, reason))

    async def resume_group(
        self, group_id: str, topics: Topics = (), members: Iterable[str] = ()
    ) -> PauseAnswer:
        """As `AdminClient.resume_group`."""
        return await self._run(calls.resume_group(group_id, topics, members))

    async def replay(
        self,
        group_id: str,
        into: str,
        what: ReplayOf,
        topics: Topics = (),
        *,
        rate_per_s: int = 0,
        with_settings: bool = False,
        dry_run: bool = False,
    ) -> list[ReplayedPartition]:
        """As `AdminClient.replay`."""
        call = calls.replay(
            group_id,
            into,
            what,
            topics,
            rate_per_s=rate_per_s,
            with_settings=with_settings,
            dry_run=dry_run,
        )
        return await self._run(call)

    async def delete_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, AdminError | None]:
        """As `AdminClient.delete_offsets`."""
        return await self._run(calls.delete_offsets(group_id, topics))

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, AdminError | None]:
        """As `AdminClient.delete_groups`."""
        return await self._run(calls.delete_groups(group_ids))

    async def list_in_flight(
        self,
        group_id: str,
        topic: str,
        partition: int,
        *,
        from_offset: int = 0,
        max_ranges: int = 1000,
    ) -> list[InFlightRange]:
        """As `AdminClient.list_in_flight`."""
        return await self._run(
            calls.list_in_flight(
                group_id, topic, partition, from_offset=from_offset, max_ranges=max_ranges
            )
        )

    async def describe_coordinator(self) -> CoordinatorDescription:
        """As `AdminClient.describe_coordinator`."""
        return await self._run(calls.describe_coordinator())

    async def _run(self, call: Call[T]) -> T:
        route = self._route
        route.check()
        if route.must_be_found(call):
            await self._run(calls.describe_coordinator())
        error: AdminError | None = None
        for address in route.addresses(call):
            try:
                answer = await self._send(address, call)
            except grpc.RpcError as raised:
                failure = failure_of(raised)
                error = route.failed(failure, address)
                if route.may_be_kafka(failure) and await asyncio.to_thread(speaks_kafka, address):
                    error = kafka_broker(address)
                if not route.is_silent(failure):
                    break
            else:
                route.answered(address)
                return call.read(answer)
        assert error is not None, "there is one address at least"
        raise error

    async def _send(self, address: str, call: Call[Any]) -> Message:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_aio_channel(address, self._route.config.tls)
        method = channel.unary_unary(
            call.path, request_serializer=_encode, response_deserializer=call.decode
        )
        answer: Message = await method(
            call.request,
            timeout=self._route.config.api_timeout_s,
            metadata=self._route.metadata(),
        )
        return answer
