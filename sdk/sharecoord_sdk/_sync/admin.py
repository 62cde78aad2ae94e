# Generated from _async/admin.py by tools/async_to_sync.py; `make sync` writes it.
"""The admin client: groups, their members, offsets, settings and dead letters."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, Self, TypeVar

# Before grpc: it sets what grpc reads when it is imported.
from sharecoord_sdk._grpc import failure_of, open_channel  # isort: skip
import grpc
from google.protobuf.message import Message

from sharecoord_sdk._admin import calls
from sharecoord_sdk._admin.errors import AdminError, kafka_broker
from sharecoord_sdk._admin.route import Route, speaks_kafka
from sharecoord_sdk._admin.types import (
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
from sharecoord_sdk._core.texts import escaped_text

T = TypeVar("T")


class AdminClient:
    """Admin calls of a coordinator. `AdminClient` is for threads, `AsyncAdminClient` for one loop.

    The constructor starts nothing; the connection opens at the first call. Each process needs a
    client of its own.

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

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._route.close()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """All groups by name; with `states` those in one of them."""
        states = [GroupState(state) for state in states]
        return self._call("ListGroups", list[GroupListing], states=states)

    def describe_groups(
        self, group_ids: Iterable[str] = (), *, members: bool = True, offsets: bool = True
    ) -> list[GroupDescription]:
        """State, members and offsets of groups; of all when none is named.

        A group that does not exist is in the result, with state DEAD and its error.
        """
        return self._call(
            "DescribeGroups",
            list[GroupDescription],
            group_ids=calls.names_of("group_ids", group_ids),
            include_members=members,
            include_offsets=offsets,
        )

    def describe_group_configs(self, group_id: str) -> list[ConfigEntry]:
        """Every setting of a group with its source; also before the group exists."""
        return self._call("DescribeGroupConfigs", list[ConfigEntry], group_id=group_id)

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
        self._call(
            "AlterGroupConfigs",
            NoneType,
            group_id=group_id,
            set={name: calls.config_text(value) for name, value in (set_values or {}).items()},
            delete=calls.names_of("delete", delete),
            validate_only=validate_only,
        )

    def reset_offsets(
        self,
        group_id: str,
        to: ResetTo,
        topics: calls.Topics = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ResetResult]:
        """Moves start offsets, what is in flight is forgotten.

        A group that does not exist is made when topics are named; no topics = all for which it has
        offsets. `dry_run` only says what would happen. `force` resets while members are connected,
        too; their locks on these partitions are void. Look at the `error` of each result.

        Raises:
            GroupNotEmptyError: The group has members, and `force` is not set.
        """
        return self._call(
            "ResetOffsets",
            list[ResetResult],
            group_id=group_id,
            topics=calls.targets_of(topics),
            dry_run=dry_run,
            force=force,
            **calls.reset_fields(to),
        )

    def delete_offsets(self, group_id: str, topics: Iterable[str]) -> dict[str, AdminError | None]:
        """Forgets the state of whole topics; the reset policy decides where they start again.

        Returns:
            Topic to None (done) or its error.

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: A member subscribes to one of the topics.
        """
        return self._call(
            "DeleteOffsets",
            dict[str, AdminError | None],
            group_id=group_id,
            topics=calls.names_of("topics", topics),
        )

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, AdminError | None]:
        """Deletes groups without members, with their offsets and settings.

        Returns:
            Group to None (done) or its error.
        """
        return self._call(
            "DeleteGroups",
            dict[str, AdminError | None],
            group_ids=calls.names_of("group_ids", group_ids),
        )

    def pause_group(
        self,
        group_id: str,
        topics: calls.Topics = (),
        members: Iterable[str] = (),
        *,
        reason: str = "",
    ) -> PauseAnswer:
        """Pauses a group, topics, partitions or members: they give, or get, nothing new.

        Without topics and members it is the group itself. All or nothing; what is paused already
        stays as it is, and its result says so. `reason` is shown to people.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: There is no such topic or partition.
            AdminError: There is no such member (UNKNOWN_MEMBER).
        """
        return self._call(
            "PauseGroup",
            PauseAnswer,
            group_id=group_id,
            topics=calls.targets_of(topics),
            member_ids=calls.names_of("members", members),
            reason=escaped_text(reason),
        )

    def resume_group(
        self, group_id: str, topics: calls.Topics = (), members: Iterable[str] = ()
    ) -> PauseAnswer:
        """Ends pauses, exactly those that are named; arguments as of `pause_group`.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        return self._call(
            "ResumeGroup",
            PauseAnswer,
            group_id=group_id,
            topics=calls.targets_of(topics),
            member_ids=calls.names_of("members", members),
        )

    def force_records(
        self,
        group_id: str,
        topic: str,
        partition: int,
        first_offset: int,
        last_offset: int,
        action: ForceAction,
        *,
        dry_run: bool = False,
    ) -> list[ForcedRange]:
        """Skips, finishes or releases records, whoever holds them: their locks are dead.

        `last_offset` is inclusive; the records need not have been read yet; 100000 are the most.
        `dry_run` only says what would happen. The answer says what became of them, by offset.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: The group has no such share-partition.
            InvalidRequestError: The range is not in the log, or too long.
        """
        return self._call(
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
        return self._call(
            "ListInFlight",
            list[InFlightRange],
            group_id=group_id,
            partition=(topic, partition),
            from_offset=from_offset,
            max_ranges=max_ranges,
        )

    def replay(
        self,
        group_id: str,
        into: str,
        what: ReplayOf,
        topics: calls.Topics = (),
        *,
        rate_per_s: int = 0,
        with_settings: bool = False,
        dry_run: bool = False,
    ) -> list[ReplayedPartition]:
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
        return self._call(
            "Replay",
            list[ReplayedPartition],
            group_id=group_id,
            into_group_id=into,
            topics=calls.targets_of(topics),
            from_timestamp_ms=what.from_ms,
            to_timestamp_ms=what.to_ms,
            duration_ms=what.duration_ms,
            offsets=what.ranges,
            rate_per_s=rate_per_s,
            with_settings=with_settings,
            dry_run=dry_run,
        )

    def list_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        max_letters: int = 100,
        after: str = "",
        dead_letter_topic: str = "",
    ) -> DeadLetterPage:
        """Dead letters of a group, those first that wait for their topic; go on with `next`.

        A page reads for some seconds at most: it may have fewer letters than asked for, even none,
        although there are more. `max_letters` is 1 to 1000, `after` the `next` of the former page;
        without a `dead_letter_topic` it is the one of the group's settings.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidConfigError: It has no dead-letter topic, and none is named.
            InvalidRequestError: The filter is bad; the field is named.
        """
        return self._call(
            "ListDeadLetters",
            DeadLetterPage,
            group_id=group_id,
            filter=calls.filter_of(wanted),
            max_letters=max_letters,
            after=after,
            dead_letter_topic=dead_letter_topic,
        )

    def show_dead_letter(
        self,
        group_id: str,
        letter_id: str = "",
        *,
        place: tuple[int, int] | None = None,
        dead_letter_topic: str = "",
    ) -> DeadLetterDetails:
        """Reads one whole letter, by its id or (quicker) by partition and offset in the topic.

        Raises:
            UnknownDeadLetterError: The group has no such letter.
        """
        return self._call(
            "ShowDeadLetter",
            DeadLetterDetails,
            group_id=group_id,
            id=letter_id if place is None else None,
            place=None if place is None else ("", *place),
            dead_letter_topic=dead_letter_topic,
        )

    def redrive_dead_letters(
        self,
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
    ) -> DeadLettersResult:
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
        return self._call(
            "RedriveDeadLetters",
            DeadLettersResult,
            group_id=group_id,
            filter=calls.filter_of(wanted),
            all=all_letters,
            dry_run=dry_run,
            rate_per_s=rate_per_s,
            again=again,
            discarded=discarded,
            max_letters=max_letters,
            dead_letter_topic=dead_letter_topic,
        )

    def discard_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        all_letters: bool = False,
        dry_run: bool = False,
        max_letters: int = 0,
        dead_letter_topic: str = "",
    ) -> DeadLettersResult:
        """Marks letters as done with: no redrive takes them unless asked to.

        Arguments and errors as `redrive_dead_letters`.
        """
        return self._call(
            "DiscardDeadLetters",
            DeadLettersResult,
            group_id=group_id,
            filter=calls.filter_of(wanted),
            all=all_letters,
            dry_run=dry_run,
            max_letters=max_letters,
            dead_letter_topic=dead_letter_topic,
        )

    def withdraw_redrive(self, group_id: str, *, dead_letter_topic: str = "") -> int:
        """Takes back what was redriven and never handed out; a later redrive takes it again.

        Returns:
            How many letters.
        """
        return self._call(
            "WithdrawRedrive", int, group_id=group_id, dead_letter_topic=dead_letter_topic
        )

    def block_keys(self, group_id: str, keys: Iterable[bytes | str], *, reason: str = "") -> None:
        """Hands out nothing of these keys from now on; what is under a lock runs on.

        Args:
            group_id: The group; it need not exist yet, but must have `share.ordering=key`.
            keys: Keys of records; text stands for its UTF-8.
            reason: Why, for people. A key that is blocked already gets it, and keeps its time.

        Raises:
            InvalidRequestError: The group keeps no order by key, or a key is too long.
        """
        self._call(
            "BlockKeys",
            NoneType,
            group_id=group_id,
            keys=calls.keys_of(keys),
            reason=escaped_text(reason),
        )

    def unblock_keys(self, group_id: str, keys: Iterable[bytes | str]) -> list[bytes]:
        """Hands out records of these keys again, in their order.

        Returns:
            Those that were not blocked.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        return self._call("UnblockKeys", list[bytes], group_id=group_id, keys=calls.keys_of(keys))

    def list_blocked_keys(self, group_id: str) -> list[BlockedKey]:
        """The blocked keys of a group by key, with what waits for each.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        return self._call("ListBlockedKeys", list[BlockedKey], group_id=group_id)

    def import_offsets(
        self,
        group_id: str,
        consumer_group: str,
        topics: Iterable[str] = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ImportedOffsets]:
        """Sets start offsets to what a consumer group of Kafka has committed.

        The share group need not exist yet; no topics = all for which the consumer group has
        committed something. `dry_run` only says what would happen; `force` imports while one of
        both groups has members, too.

        Raises:
            GroupNotEmptyError: One of both has, and `force` is not set.
            InvalidRequestError: The consumer group has committed nothing.
        """
        return self._call(
            "ImportOffsets",
            list[ImportedOffsets],
            group_id=group_id,
            from_consumer_group=consumer_group,
            topics=calls.names_of("topics", topics),
            dry_run=dry_run,
            force=force,
        )

    def export_offsets(
        self,
        group_id: str,
        consumer_group: str,
        topics: Iterable[str] = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ExportedOffsets]:
        """Commits start offsets for a consumer group of Kafka, which must have no members.

        A new consumer group is made; no topics = all for which the share group has offsets.
        `dry_run` only says what would happen; `force` exports while the share group has members.

        Raises:
            GroupNotFoundError: There is no such share group.
            GroupNotEmptyError: One of both groups has members.
        """
        return self._call(
            "ExportOffsets",
            list[ExportedOffsets],
            group_id=group_id,
            to_consumer_group=consumer_group,
            topics=calls.names_of("topics", topics),
            dry_run=dry_run,
            force=force,
        )

    def describe_coordinator(self) -> CoordinatorDescription:
        """The coordinator that answers: version, Kafka cluster, store, uptime."""
        return self._call("DescribeCoordinator", CoordinatorDescription)

    def _call(self, method: str, result: type[T], **fields: Any) -> T:
        """Calls a method of AdminService with these fields in its request."""
        return calls.MAPPER.read(result, self._run(calls.admin_call(method, fields)))

    def _run(self, call: calls.Call) -> Any:
        route = self._route
        route.check()
        if route.must_be_found(call):
            self.describe_coordinator()
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
                return answer
        assert error is not None, "there is one address at least"
        raise error

    def _send(self, address: str, call: calls.Call) -> Message:
        with self._lock:
            channel = self._channels.get(address)
            if channel is None:
                tls = self._route.config.tls
                channel = self._channels[address] = open_channel(address, tls)
        method = channel.unary_unary(
            call.path, request_serializer=_encode, response_deserializer=call.decode
        )
        answer: Message = method(
            call.request,
            timeout=self._route.config.api_timeout_s,
            metadata=self._route.metadata(),
        )
        return answer


def _encode(request: Message) -> bytes:
    return request.SerializeToString()
