"""What operators do: groups, their members, offsets and settings. No protocol known here.

Reads show committed state. Changes are one transaction of the store each; live actors notice them
as they notice another coordinator's: their next commit is fenced, and they load anew.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

import structlog

from sharecoord.config.group import (
    GROUP_SETTINGS,
    GroupConfigEntry,
    IsolationLevel,
    resolve,
    validate_group_overrides,
)
from sharecoord.core.changes import InFlightRow, MemberRow, PartitionKey
from sharecoord.core.events import GroupEvent
from sharecoord.core.lanes import Replayed, hinders_replay
from sharecoord.errors import (
    GroupNotEmptyError,
    InvalidConfigError,
    InvalidRequestError,
    SharecoordError,
    StoreOutcomeUnknownError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.admin_base import counted, not_found
from sharecoord.runtime.admin_keys import KeysAdmin, refuse_while_blocked
from sharecoord.runtime.admin_letters import LetterAdmin
from sharecoord.runtime.admin_offsets import export_offsets, import_offsets
from sharecoord.runtime.admin_replay import (
    ReplayCommand,
    check_replay,
    not_finished,
    plan_replay,
)
from sharecoord.runtime.admin_reset import plan_reset
from sharecoord.runtime.admin_types import (
    CoordinatorInfo,
    CoordinatorView,
    ExportCommand,
    ExportedPartition,
    GroupListing,
    GroupState,
    GroupView,
    ImportCommand,
    ImportedPartition,
    InFlightView,
    ResetCommand,
    ResetKind,
    ResetResult,
)
from sharecoord.runtime.admin_views import IN_FLIGHT_PAGE, Views
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group_events import tell, tell_reset, told_when_done
from sharecoord.runtime.interventions import Interventions
from sharecoord.runtime.store_thread import StoreCaller

log = structlog.get_logger(__name__)

IN_FLIGHT_DEFAULT = 1_000
"""Ranges of one answer when the caller names no number."""


class Admin(Interventions, KeysAdmin):
    """The operations of one coordinator.

    Args:
        coordinator: Whose groups are meant.
        info: What it was started with.
        reads: Runs the store's reads for people; a thread of its own keeps them out of the
            committer's way. By default the coordinator's.
    """

    def __init__(
        self, coordinator: Coordinator, info: CoordinatorInfo, *, reads: StoreCaller | None = None
    ) -> None:
        super().__init__(coordinator, reads)
        self._info = info
        self._started_ms = coordinator.context.clock.now_ms()
        self.letters = LetterAdmin(coordinator, reads)

    # -- reads ----------------------------------------------------------------------------------

    def describe_coordinator(self) -> CoordinatorView:
        """The coordinator itself."""
        uptime_ms = self._context.clock.now_ms() - self._started_ms
        return CoordinatorView(self._context.coordinator_id, self._info, uptime_ms)

    async def list_groups(self, states: Iterable[GroupState] = ()) -> list[GroupListing]:
        """All groups by name; with `states` those in one of them."""
        groups, members = await self._load()
        wanted = set(states) or set(GroupState)
        listed = [GroupListing(name, _state(members.get(name))) for name in sorted(groups)]
        return [group for group in listed if group.state in wanted]

    async def describe_groups(
        self, group_ids: Sequence[str] = (), *, members: bool = True, offsets: bool = True
    ) -> list[GroupView]:
        """Groups in the order asked for; without `group_ids` all, by name.

        A group that does not exist is answered inside. Offsets that Kafka does not give in time
        are left out.
        """
        groups, members_by_group = await self._load()
        ids = list(dict.fromkeys(group_ids)) or sorted(groups)
        rows = {name: await self._shown_rows(name) for name in ids if name in groups}
        views = Views(self._coordinator, self._reads, groups)
        configs = {name: self._config(groups[name]) for name in rows}
        ends = await views.log_ends(configs, rows) if offsets else {}
        described: list[GroupView] = []
        for name in ids:
            row = groups.get(name)
            if row is None:
                described.append(GroupView(name, error=not_found(name)))
                continue
            found = members_by_group.get(name, [])
            described.append(
                GroupView(
                    group_id=name,
                    state=_state(found),
                    group_epoch=row.group_epoch,
                    coordinator_id=self._context.coordinator_id,
                    member_count=len(found),
                    members=await views.members(name, found, rows[name]) if members else (),
                    partitions=await views.partitions(rows[name], ends) if offsets else (),
                    fairness_jain_ratio=views.fairness(name),
                    pauses=row.pauses,
                )
            )
        return described

    async def describe_configs(self, group_id: str) -> tuple[GroupConfigEntry, ...]:
        """The settings of a group with their source; also of one that does not exist yet."""
        groups, _ = await self._load()
        row = groups.get(group_id)
        return self._config(row).entries()

    async def list_in_flight(
        self,
        group_id: str,
        topic: str,
        partition: int,
        *,
        topic_id: str = "",
        from_offset: int = 0,
        max_ranges: int = 0,
    ) -> InFlightView:
        """Ranges in flight by offset, from the one that holds `from_offset` on.

        Args:
            group_id: The group.
            topic: The topic; of a lane `DEAD-LETTER-TOPIC/TOPIC`, or `.../TOPIC/PARTITION`.
            partition: The partition.
            topic_id: 32 hex digits, "" = any.
            from_offset: 0 or more.
            max_ranges: 1 to 10000; 0 = 1000.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: The group has no such share-partition.
            InvalidRequestError: A number is out of bounds.
        """
        if from_offset < 0:
            raise InvalidRequestError(f"from_offset is {from_offset}; it must be 0 or more")
        if not 0 <= max_ranges <= IN_FLIGHT_PAGE:
            raise InvalidRequestError(
                f"max_ranges is {max_ranges}; 1 to {IN_FLIGHT_PAGE}, or 0 for {IN_FLIGHT_DEFAULT}"
            )
        groups, _ = await self._load()
        if group_id not in groups:
            raise not_found(group_id)
        for row in await self._rows(group_id):
            if row.key.place == (topic, partition) and topic_id in ("", row.key.topic_id):
                break
        else:
            raise UnknownTopicOrPartitionError(
                f"group {group_id!r} has no share-partition {topic}[{partition}]; "
                "`sharecoord groups --describe` lists what it has"
            )
        ranges = await self._reads.call(
            self._context.store.read_in_flight,
            row.partition_id,
            from_offset=from_offset,
            max_rows=max_ranges or IN_FLIGHT_DEFAULT,
        )
        checkpoints = await self._checkpoints_of(row.partition_id, ranges) if ranges else ()
        clock = self._context.clock
        return InFlightView(tuple(ranges), clock.to_store(clock.now_ms()), tuple(checkpoints))

    async def _checkpoints_of(
        self, partition_id: int, ranges: Sequence[InFlightRow]
    ) -> list[tuple[int, int]]:
        """Of each range: how many of its records have a checkpoint, and the bytes of these."""
        sizes = await self._reads.call(
            self._context.store.checkpoint_sizes,
            partition_id,
            ranges[0].first_offset,
            ranges[-1].last_offset,
        )
        offsets, bytes_before = list(sizes), list(itertools.accumulate(sizes.values(), initial=0))
        places = [
            (bisect_left(offsets, row.first_offset), bisect_right(offsets, row.last_offset))
            for row in ranges
        ]
        return [(stop - start, bytes_before[stop] - bytes_before[start]) for start, stop in places]

    # -- settings -------------------------------------------------------------------------------

    async def alter_configs(
        self,
        group_id: str,
        set_values: Mapping[str, str],
        deleted: Sequence[str],
        *,
        validate_only: bool = False,
    ) -> None:
        """Sets and deletes settings of a group, all or nothing; makes the group when it is new.

        Raises:
            InvalidConfigError: A name or a value is bad, or the settings contradict each other.
            InvalidRequestError: A name stands in both lists.
            LimitExceededError: The group is new, and there are as many as there may be.
        """
        both = sorted(set(set_values) & set(deleted))
        if both:
            raise InvalidRequestError(f"{both[0]} is set and deleted at once; do one of both")
        for name in deleted:
            GROUP_SETTINGS.find(name)
        await self._to_the_end(
            self._alter(group_id, set_values, deleted, validate_only=validate_only)
        )

    async def _alter(
        self,
        group_id: str,
        set_values: Mapping[str, str],
        deleted: Sequence[str],
        *,
        validate_only: bool,
    ) -> None:
        async with self._altering:
            groups, _ = await self._load()
            row = groups.get(group_id)
            config = {} if row is None else dict(row.config)
            config = {name: text for name, text in config.items() if name not in deleted}
            checked = validate_group_overrides(
                config | dict(set_values), self._context.group_defaults
            )
            wanted = resolve(checked, self._context.group_defaults)
            refuse_while_blocked(row, wanted)
            if wanted.ordering is not self._config(row).ordering:
                await self._coordinator.lanes.check_reordering(group_id, wanted)
            if "errors.deadletterqueue.topic.name" in set_values:
                await self._check_dead_letters(group_id, checked)
            self._coordinator.check_room(group_id)
            if validate_only:
                return
            try:
                await self._context.caller.call(
                    self._context.store.save_group_config,
                    group_id,
                    set_values={name: checked[name] for name in set_values},
                    deleted=list(deleted),
                )
                changed = [f"{name}={checked[name]}" for name in set_values]
                changed += [f"{name} deleted" for name in deleted]
                said = ", ".join(changed)
                tell(self._context, group_id, GroupEvent.CONFIGURED, reason=said)
            finally:
                # Whatever became of it: what is stored is what is in force.
                await self._refresh(group_id)

    # -- offsets --------------------------------------------------------------------------------

    async def reset_offsets(self, command: ResetCommand) -> list[ResetResult]:
        """Moves start offsets: what is in flight is forgotten, old lock tokens are dead.

        Partitions that do not exist or do not answer carry an error; the others are reset.

        Raises:
            GroupNotEmptyError: The group has members, and `force` is not set.
            GroupNotFoundError: There is no such group, and no topics are named.
            InvalidRequestError: A negative offset or time.
            KafkaUnavailableError: Kafka does not answer.
            LimitExceededError: The group is new, and there are as many as there may be.
        """
        groups, members = await self._load()
        group_id = command.group_id
        found = members.get(group_id, [])
        if found and not command.force:
            raise GroupNotEmptyError(
                f"group {group_id!r} has {counted(len(found), 'member')}; stop them, or reset with "
                "force: then their locks on these partitions are void"
            )
        named = command.topics or command.to.kind is ResetKind.OFFSETS
        if group_id not in groups and not named:
            raise not_found(group_id)
        rows = await self._log_rows(group_id)
        self._coordinator.check_room(group_id)
        config = self._config(groups.get(group_id))
        committed = config.isolation_level is IsolationLevel.READ_COMMITTED
        clock = self._context.clock
        results = await plan_reset(
            self._context.catalog,
            command,
            rows,
            committed=committed,
            now_ms=clock.to_store(clock.now_ms()),
        )
        if not command.dry_run:
            await self._to_the_end(self._execute_reset(group_id, results))
        return results

    async def _execute_reset(self, group_id: str, results: Sequence[ResetResult]) -> None:
        heads = {
            PartitionKey(group_id, r.topic, r.topic_id, r.partition): r.new_offset
            for r in results
            if r.error is None
        }
        if not heads:
            return
        await self._open_siblings(group_id, {key.topic for key in heads})
        try:
            reset = await self._context.caller.call(self._context.store.reset_partitions, heads)
            tell_reset(self._context, group_id, reset)
        except StoreOutcomeUnknownError:
            await self._reload(group_id, heads)
            raise
        await self._reload(group_id, heads)
        log.info("offsets reset", group=group_id, partitions=len(heads))

    async def import_offsets(self, command: ImportCommand) -> list[ImportedPartition]:
        """Sets start offsets to what a consumer group of Kafka has committed.

        Raises:
            SharecoordError: As `admin_offsets.import_offsets` and `reset_offsets`.
        """
        groups, _ = await self._load()
        config = self._config(groups.get(command.group_id))
        return await import_offsets(self._context, config, command, self.reset_offsets)

    async def export_offsets(self, command: ExportCommand) -> list[ExportedPartition]:
        """Commits start offsets for a consumer group of Kafka.

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: It has members, and `force` is not set; or the consumer group has.
            SharecoordError: As `admin_offsets.export_offsets`.
        """
        groups, members = await self._load()
        group_id, name = command.group_id, command.consumer_group
        if group_id not in groups:
            raise not_found(group_id)
        found = members.get(group_id, [])
        if found and not (command.force or command.dry_run):
            raise GroupNotEmptyError(
                f"group {group_id!r} has {counted(len(found), 'member')}; stop them first, or use "
                "force: what they finish meanwhile comes again in the consumer group"
            )
        if self._config(groups[group_id]).offsets_export_group == name:
            raise InvalidRequestError(
                f"to_consumer_group: share.offsets.export.group of {group_id!r} is {name!r}, where "
                "other offsets are written for its lag. Delete that setting first"
            )
        return await export_offsets(self._context, command, await self._log_rows(group_id))

    async def _open_siblings(self, group_id: str, topics: Iterable[str]) -> None:
        """Makes the rows of all partitions: those of a first use before a reset begins it.

        What a first reset leaves out would be taken for partitions that were added to the topic
        later (see `ports.Store.open_partitions`).
        """
        keys = [
            PartitionKey(group_id, topic, info.topic_id, partition)
            for topic, info in (await self._context.catalog.describe(sorted(topics))).items()
            for partition in info.partitions
        ]
        await self._context.caller.call(self._context.store.open_partitions, keys)

    async def delete_offsets(
        self, group_id: str, topics: Sequence[str]
    ) -> dict[str, SharecoordError | None]:
        """Forgets the state of whole topics; the reset policy decides where they start again.

        Returns:
            Topic to None (done) or to what is wrong with it.

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: A member subscribes to one of the topics.
            InvalidRequestError: No topic is named.
        """
        if not topics:
            raise InvalidRequestError("topics is empty; name one topic at least")
        groups, members = await self._load()
        if group_id not in groups:
            raise not_found(group_id)
        for topic in topics:
            count = sum(topic in member.topics for member in members.get(group_id, []))
            if count:
                raise GroupNotEmptyError(
                    f"group {group_id!r} has {counted(count, 'member')} subscribed to {topic!r}; "
                    "stop them first, or use a reset with force"
                )
        known = {row.key.served for row in await self._rows(group_id)}
        wanted = [topic for topic in dict.fromkeys(topics) if topic in known]
        if wanted:
            await self._to_the_end(self._delete_topics(group_id, wanted))
        return {topic: None if topic in known else _no_state(group_id, topic) for topic in topics}

    async def _delete_topics(self, group_id: str, topics: Sequence[str]) -> None:
        group = await self._coordinator.group(group_id)
        rows = await self._rows(group_id)
        await self._context.committed()
        names = group.names_served(topics) | {r.key.name for r in rows if r.key.served in topics}
        if group.closed:
            raise not_found(group_id)
        group.forget(names, "its offsets were deleted")
        try:
            # In the same step as `forget`: whoever opens the topics from now on comes after it.
            with told_when_done(self._context, group_id, sorted(names)):
                await self._context.caller.call(self._context.store.delete_topics, group_id, topics)
        finally:
            for session in group.sessions.values():
                if not session.topics.isdisjoint(topics):
                    self._coordinator.subscription_changed(group, session)
            # Last: where the store does not answer, members that came meanwhile are served all the
            # same.
            if not group.closed:
                await self._refresh(group_id)
        log.info("offsets deleted", group=group_id, topics=list(topics))

    async def _check_dead_letters(self, group_id: str, checked: Mapping[str, str]) -> None:
        """Whether dead letters could go to their topic, as far as can be seen now."""
        config = resolve(checked, self._context.group_defaults)
        topic, sink = config.dlq_topic_name, self._context.dead_letters
        if not topic:
            return
        if any(row.key.topic == topic for row in await self._log_rows(group_id)):
            raise InvalidConfigError(
                f"errors.deadletterqueue.topic.name={topic}: the group reads this topic itself, "
                "its dead letters would come back for ever; name another topic",
                metadata={"key": "errors.deadletterqueue.topic.name", "value": topic},
            )
        if sink is not None:
            await sink.ensure(topic, create=config.dlq_auto_create)

    async def replay(self, command: ReplayCommand) -> list[Replayed]:
        """Delivers a part of topics' logs to a side group, from the store's view a new group.

        Returns:
            Its share-partitions; those of which nothing is selected have nothing to do.

        Raises:
            GroupNotFoundError: There is no group whose records these are.
            GroupNotEmptyError: The side group has members or records of its own.
            UnknownTopicOrPartitionError: A topic or partition that the cluster does not have.
            InvalidRequestError: Bad times, offsets outside of the log, a bad rate.
            KafkaUnavailableError: Kafka does not answer.
            LimitExceededError: Too many groups, or too many runs of offsets.
        """
        check_replay(command)
        groups, members = await self._load()
        if command.group_id not in groups:
            raise not_found(command.group_id)
        into = command.into_group_id
        if members.get(into):
            raise GroupNotEmptyError(
                f"group {into!r} has {counted(len(members[into]), 'member')}; replay into a group "
                "of another name, or stop them first"
            )
        if any(hinders_replay(row) for row in await self._rows(into)):
            raise not_finished(into)
        self._coordinator.check_room(into)
        committed = self._config(groups[command.group_id]).isolation_level
        parts = await plan_replay(
            self._context.catalog,
            command,
            now_ms=self._context.clock.to_store(self._context.clock.now_ms()),
            committed=committed is IsolationLevel.READ_COMMITTED,
        )
        if not command.dry_run:
            config = groups[command.group_id].config if command.with_settings else None
            await self._to_the_end(self._replay(parts, config))
        return parts

    async def _replay(self, parts: Sequence[Replayed], config: Mapping[str, str] | None) -> None:
        into = parts[0].key.group_id
        store = self._context.store
        if not await self._context.caller.call(store.make_replay, parts, config=config):
            raise not_finished(into)
        await self._reload(into, [part.key for part in parts])
        tell(self._context, into, GroupEvent.CONFIGURED, reason="replay")
        log.info("replay", group=into, partitions=len(parts))

    # -- groups ---------------------------------------------------------------------------------

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, SharecoordError | None]:
        """Deletes groups with everything under them, settings included.

        Returns:
            Group to None (done) or to what is wrong with it.

        Raises:
            InvalidRequestError: No group is named.
        """
        if not group_ids:
            raise InvalidRequestError("group_ids is empty; name one group at least")
        results: dict[str, SharecoordError | None] = {}
        for group_id in dict.fromkeys(group_ids):
            try:
                await self._to_the_end(self._delete_group(group_id))
            except SharecoordError as error:
                results[group_id] = error
            else:
                results[group_id] = None
        return results

    async def _delete_group(self, group_id: str) -> None:
        """Deletes one group, between two of its lives.

        The live actor is closed in the same step in which the deletion is handed to the store:
        whatever the actor asked the store for comes before it, whatever a new one asks for after
        it. A deletion that fails leaves the group to its next use, which makes a new actor.
        """
        async with self._coordinator.making(group_id):
            await self._context.committed()
            groups, members = await self._load()
            if group_id not in groups:
                raise not_found(group_id)
            group = self._coordinator.groups.get(group_id)
            count = max(len(members.get(group_id, [])), len(group.sessions) if group else 0)
            if count:
                raise GroupNotEmptyError(
                    f"group {group_id!r} has {counted(count, 'member')}; stop them first"
                )
            if group is not None:
                del self._coordinator.groups[group_id]
                group.close()
            with told_when_done(self._context, group_id):
                await self._context.caller.call(self._context.store.delete_group, group_id)
        self._tell_fleet()
        log.info("group deleted", group=group_id)


def _state(members: Sequence[MemberRow] | None) -> GroupState:
    return GroupState.STABLE if members else GroupState.EMPTY


def _no_state(group_id: str, topic: str) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"group {group_id!r} has no offsets for topic {topic!r}")
