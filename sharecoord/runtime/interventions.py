"""What operators do to a group at work: pause parts of it, settle or release single records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from sharecoord.config.group import IsolationLevel
from sharecoord.core.changes import MemberRow, PartitionKey, PausesChanged
from sharecoord.core.events import GroupEvent
from sharecoord.core.pauses import OPERATOR, Pause, Pauses, PauseScope
from sharecoord.core.states import ForceAction
from sharecoord.errors import (
    InvalidRequestError,
    StoreOutcomeUnknownError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import LATEST, OffsetQuery
from sharecoord.runtime.admin_base import AdminBase, not_found
from sharecoord.runtime.admin_types import ForcedRange, PauseAnswer, PauseResult
from sharecoord.runtime.forcing import Forcing
from sharecoord.runtime.group_events import tell, tell_forced
from sharecoord.runtime.group_settings import settings_of
from sharecoord.runtime.parking import delayed_max

FORCE_RECORDS_MAX = 100_000
"""Of one call: what it releases for the last time gets a dead letter each, in one transaction."""

log = structlog.get_logger(__name__)


class Interventions(AdminBase):
    """See the module; a part of `Admin`."""

    async def pause_group(
        self, group_id: str, scopes: Sequence[PauseScope], *, reason: str = "", by: str = OPERATOR
    ) -> PauseAnswer:
        """Pauses a group, or parts of it: all or nothing. What is paused already stays as it is.

        From this answer on this coordinator hands out nothing new of it; the other ones of a fleet
        within moments, or a second where there is no link to them.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: Neither the group nor the cluster has it.
            UnknownMemberError: The group has no such member.
            LimitExceededError: Too many pauses in one group.
        """
        groups, members = await self._load()
        if group_id not in groups:
            raise not_found(group_id)
        await self._check_scopes(group_id, scopes, members.get(group_id, ()))
        clock = self._context.clock
        now_ms = clock.to_store(clock.now_ms())
        pauses = [Pause(scope, now_ms, by, reason) for scope in scopes]
        change = await self._to_the_end(self._change_pauses(group_id, pauses, ()))
        return _answer(change, scopes, pausing=True)

    async def resume_group(self, group_id: str, scopes: Sequence[PauseScope]) -> PauseAnswer:
        """Ends exactly these pauses; a topic of a group may stay paused when the group goes on.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        change = await self._to_the_end(self._change_pauses(group_id, (), scopes))
        return _answer(change, scopes, pausing=False)

    async def force_records(
        self,
        group_id: str,
        place: tuple[str, int],
        offsets: tuple[int, int],
        action: ForceAction,
        *,
        dry_run: bool = False,
    ) -> list[ForcedRange]:
        """Skips, finishes or releases [first, last], whoever holds it and whoever owns it.

        Returns:
            What became of it, or would become, in order of offset.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: The group has no such share-partition.
            InvalidRequestError: The range is not in the log, or too long.
            KafkaUnavailableError: Where the log ends is not known.
            LimitExceededError: Too much is to be passed over.
        """
        _check_range(*offsets)
        groups, _ = await self._load()
        if group_id not in groups:
            raise not_found(group_id)
        key = await self._key_of(group_id, place)
        config = self._config(groups[group_id])
        committed = config.isolation_level is IsolationLevel.READ_COMMITTED
        query = OffsetQuery(*place, LATEST)
        log_end = await self._context.offset(query, committed=committed)
        if offsets[1] >= log_end:
            raise InvalidRequestError(
                f"offset {offsets[1]} of {place[0]}[{place[1]}] does not exist yet: the log ends "
                f"at {log_end}"
            )
        settings = settings_of(config)
        change = Forcing(
            *offsets,
            action,
            settings,
            self._context.clock,
            delayed_max(self._context, settings),
            dry_run=dry_run,
        )
        await self._to_the_end(self._force(key, change))
        return change.results

    async def _force(self, key: PartitionKey, change: Forcing) -> None:
        store, caller = self._context.store, self._context.caller
        try:
            if not await caller.call(store.change_partition, key, change):
                raise _no_place(key.group_id, key.topic, key.partition)
            if change.dry_run or not change.change_sequence:
                return
            tell_forced(self._context, key, change)
        except StoreOutcomeUnknownError:
            await self._reload(key.group_id, [key])
            raise
        await self._reload(key.group_id, [key])
        changed = [(each.first, each.last) for each in change.results if each.changed]
        log.info("records forced", partition=key, action=change.action.value, offsets=changed)

    async def _key_of(self, group_id: str, place: tuple[str, int]) -> PartitionKey:
        for row in await self._log_rows(group_id):
            if (row.key.topic, row.key.partition) == place:
                return row.key
        raise _no_place(group_id, *place)

    async def _change_pauses(
        self, group_id: str, pause: Sequence[Pause], resume: Sequence[PauseScope]
    ) -> PausesChanged:
        store, caller = self._context.store, self._context.caller
        try:
            change = await caller.call(store.change_pauses, group_id, pause=pause, resume=resume)
        except BaseException:
            # Whatever became of it: what is stored is what is in force.
            await self._refresh(group_id)
            raise
        if change is None:
            raise not_found(group_id)
        await self._refresh(group_id)
        # What was acquired before has left by then, so that nothing comes after the answer.
        await self._context.committed()
        self._tell_pauses(group_id, change)
        return change

    def _tell_pauses(self, group_id: str, change: PausesChanged) -> None:
        before, after = set(change.before), set(change.row.pauses)
        for pause in (*(after - before), *(before - after)):
            scope, is_new = pause.scope, pause in after
            tell(
                self._context,
                group_id,
                GroupEvent.PAUSED if is_new else GroupEvent.RESUMED,
                place=(scope.topic or None, scope.partition),
                member_id=scope.member_id or None,
                reason=str(pause) if is_new else None,
            )
            said = "paused" if is_new else "resumed"
            log.info(said, group=group_id, what=str(scope), by=pause.by, why=pause.reason)

    async def _check_scopes(
        self, group_id: str, scopes: Sequence[PauseScope], members: Sequence[MemberRow]
    ) -> None:
        """Whether there is what is to be paused."""
        known = {member.member_id for member in members}
        for scope in scopes:
            if scope.member_id and scope.member_id not in known:
                raise UnknownMemberError(
                    f"group {group_id!r} has no member {scope.member_id!r}; "
                    "`sharecoord groups --describe --members` lists them"
                )
        topics = {scope.topic for scope in scopes if scope.topic}
        if topics:
            _check_topics(scopes, await self._partitions_of(group_id, topics))

    async def _partitions_of(self, group_id: str, topics: set[str]) -> dict[str, set[int]]:
        """What the group has of these topics; Kafka is asked for those that it has nothing of."""
        found: dict[str, set[int]] = {}
        for row in await self._rows(group_id):
            if row.key.topic in topics:
                found.setdefault(row.key.topic, set()).add(row.key.partition)
        if missing := sorted(topics - found.keys()):
            for topic, info in (await self._context.catalog.describe(missing)).items():
                found[topic] = set(info.partitions)
        return found


def _check_range(first: int, last: int) -> None:
    if not 0 <= first <= last:
        raise InvalidRequestError(f"offsets {first} to {last} are no range; 0 <= first <= last")
    if last - first >= FORCE_RECORDS_MAX:
        raise InvalidRequestError(
            f"{last - first + 1} records at once; {FORCE_RECORDS_MAX} is the most: call again, "
            "or reset the group's offset"
        )


def _no_place(group_id: str, topic: str, partition: int) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(
        f"group {group_id!r} has no share-partition {topic}[{partition}]; "
        "`sharecoord groups --describe` lists what it has"
    )


def _check_topics(scopes: Sequence[PauseScope], partitions: Mapping[str, set[int]]) -> None:
    for topic, partition, _ in scopes:
        if topic and topic not in partitions:
            raise UnknownTopicOrPartitionError(f"the cluster has no topic {topic!r}")
        if partition is not None and partition not in partitions[topic]:
            count = len(partitions[topic])
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {partition}; it has {count} (0 to {count - 1})"
            )


def _answer(change: PausesChanged, scopes: Sequence[PauseScope], *, pausing: bool) -> PauseAnswer:
    before = {pause.scope: pause for pause in change.before}
    after = {pause.scope: pause for pause in change.row.pauses}
    results: list[PauseResult] = []
    for scope in dict.fromkeys(scopes):
        was, pause = scope in before, after.get(scope) or before.get(scope)
        note = ""
        if pausing and was:
            note = f"{scope} was paused already"
        elif not pausing and not was:
            note = f"{scope} was not paused"
        if not pausing and (wider := _wider(scope, after)):
            note = f"{note}; {wider}" if note else wider
        results.append(PauseResult(scope, pausing != was, pause, note))
    return PauseAnswer(tuple(results), change.row.pauses)


def _wider(scope: PauseScope, after: Mapping[PauseScope, Pause]) -> str:
    """What still pauses something that was resumed."""
    pauses = Pauses(after.values())
    covers = None
    if scope.topic:
        covers = pauses.of_place(scope.topic, -1 if scope.partition is None else scope.partition)
    if scope.topic or scope.member_id:
        covers = covers or pauses.group
    return "" if covers is None else f"{covers.scope} is still paused"
