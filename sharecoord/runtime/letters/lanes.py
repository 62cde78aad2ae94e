"""Redrive: dead letters go to their group again, by lanes (docs/decisions/0019).

A redrive writes marks and ranges of the lane in one transaction per partition of the dead-letter
topic. The owner of the lane hands the ranges out like any due records. So there is no work under
way that a crash could lose or do twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import structlog

from sharecoord.config.group import GroupConfig, resolve_stored
from sharecoord.core.changes import KeptPayload, PartitionKey, PartitionRow, lane_of
from sharecoord.core.letters.lanes import (
    Mark,
    Marking,
    MarkKind,
    Selection,
    SelectionResult,
    divided,
)
from sharecoord.core.records import KEY_HASH_BYTES
from sharecoord.core.spans import Span, count
from sharecoord.core.states import Ordering
from sharecoord.errors import (
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    LimitExceededError,
    SharecoordError,
)
from sharecoord.ports import TopicInfo
from sharecoord.runtime.fleet.store_changes import see_rows
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.groups import Groups
from sharecoord.runtime.group.settings import settings_of
from sharecoord.runtime.kernel.context import Context, LaneLooks

log = structlog.get_logger(__name__)

T = TypeVar("T")

SPANS_MAX: Final = 50_000
"""Most runs of one redrive and partition: half of the ranges that a share-partition may have.
Letters that lie side by side are one run; more runs take more than one redrive."""

RUN_ID_MAX: Final = 64
"""Most characters of a run id: the length of its column."""


@dataclass(frozen=True, slots=True)
class LaneSelection:
    """Letters of one partition of a dead-letter topic that come from one topic."""

    topic: str
    """The dead-letter topic."""
    topic_id: str
    """The id of `topic`, 32 hex digits; "" when the cluster has none."""
    partition: int
    source_topic: str
    """Members that subscribe to this topic get the letters."""
    spans: Sequence[Span]
    """First and last offsets, in order, disjoint."""
    keys: bytes | None = None
    """8 bytes per offset of the spans (`core.records.key_hashes_of`); groups with
    `share.ordering=key` need them."""
    source_partition: int | None = None
    """The partition of the source topic that all letters come from; groups with
    `share.ordering=key` need it."""
    kept: Sequence[KeptPayload] = ()
    """Payloads of letters whose record the dead-letter topic did not take."""


class RedriveResult(NamedTuple):
    """The outcome of a redrive or a discard."""

    records: int
    """Letters that were taken."""
    marked: int
    """Letters that were left out, because they were redriven or discarded before."""
    under_way: int
    """Letters that were left out, because an earlier redrive is not finished."""
    parts: tuple[SelectionResult, ...]


class Lanes:
    """The lanes of a coordinator's groups. All methods raise the errors of the store."""

    def __init__(self, context: Context, groups: Groups) -> None:
        self._context = context
        self._groups = groups
        self._looking = asyncio.Lock()
        self._context.lanes = LaneLooks(self._look_for, name="lanes")

    # -- what operators ask for -----------------------------------------------------------------

    async def redrive(
        self,
        group_id: str,
        selections: Sequence[LaneSelection],
        *,
        rate_per_s: int = 0,
        run_id: str,
        again: bool = False,
    ) -> RedriveResult:
        """Delivers letters to their group again, with a new count; durable when it returns.

        When it fails half-way some partitions are done: the same call again does the others.

        Args:
            group_id: The group of the letters.
            selections: The letters; no two selections of the same partition and source topic.
            rate_per_s: Records per second of all partitions together; 0 = no limit.
            run_id: The name of the redrive in the marks.
            again: Whether letters that were redriven or discarded before are taken as well.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidRequestError: A selection is bad, or the group's order can not be kept.
            LimitExceededError: Too many runs.
        """
        row = await self._check(group_id, selections, run_id)
        await self._check_order(group_id, row, selections)
        rates = divided(rate_per_s, [count(selection.spans) for selection in selections])
        marking = Marking(MarkKind.REDRIVEN, run_id, again)
        return await self._take_in(group_id, selections, rates, marking)

    async def discard(
        self, group_id: str, selections: Sequence[LaneSelection], *, run_id: str
    ) -> RedriveResult:
        """Marks letters as done with: no redrive takes them unless asked to. See `redrive`."""
        await self._check(group_id, selections, run_id)
        marking = Marking(MarkKind.DISCARDED, run_id)
        return await self._take_in(group_id, selections, [0] * len(selections), marking)

    async def withdraw(self, group_id: str, topic: str) -> int:
        """Takes back letters that were redriven from a topic and never handed out.

        Returns their number; they bear no mark of the redrive any more.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        await self._existing(group_id)
        lanes = await self._call(self._context.store.list_lanes)
        keys = [r.key for r in lanes if (r.key.group_id, r.key.topic) == (group_id, topic)]
        taken: list[SelectionResult] = []
        for batch in _by_log(keys, lambda key: key).values():
            taken += await self._call(self._context.store.withdraw, batch)
        await self._show(group_id, keys)
        return sum(count(each.taken) for each in taken)

    async def marks(self, group_id: str, topic: str, topic_id: str, partition: int) -> list[Mark]:
        """The marks of a dead-letter topic's partition, by first offset."""
        return await self._call(
            self._context.store.read_marks, group_id, topic, topic_id, partition
        )

    async def _take_in(
        self,
        group_id: str,
        selections: Sequence[LaneSelection],
        rates: Sequence[int],
        marking: Marking,
    ) -> RedriveResult:
        wanted = [
            Selection(
                _key(group_id, each),
                tuple(each.spans),
                each.keys,
                rate,
                tuple(each.kept),
            )
            for each, rate in zip(selections, rates, strict=True)
        ]
        taken: list[SelectionResult] = []
        try:
            for batch in _by_log(wanted, lambda selection: selection.key).values():
                taken += await self._call(self._context.store.take_in, batch, marking)
        finally:
            # Also after an error: the stored lanes are those in force.
            await self._show(group_id, [selection.key for selection in wanted])
        result = RedriveResult(
            sum(count(each.taken) for each in taken),
            sum(each.marked for each in taken),
            sum(each.under_way for each in taken),
            tuple(taken),
        )
        log.info(
            "letters marked",
            group=group_id,
            what=str(marking.kind),
            run=marking.run_id,
            records=result.records,
        )
        return result

    async def _show(self, group_id: str, keys: Iterable[PartitionKey]) -> None:
        """Makes the live group load changed lanes, and the fleet look as well."""
        see_rows(self._groups.get(group_id), keys)
        await self.look()
        await self._context.committed()
        self._groups.peers.look_at_store()

    # -- what is refused ------------------------------------------------------------------------

    async def _existing(self, group_id: str) -> Mapping[str, str]:
        """The overrides of a group."""
        found = await self._context.calls.group(group_id)
        if found is None:
            raise GroupNotFoundError(f"share group {group_id!r} does not exist; it has no letters")
        return found.config

    async def _check(
        self, group_id: str, selections: Sequence[LaneSelection], run_id: str
    ) -> Mapping[str, str]:
        if not 0 < len(run_id) <= RUN_ID_MAX:
            raise InvalidRequestError(f"run_id must have 1 to {RUN_ID_MAX} characters")
        keys = [_key(group_id, selection) for selection in selections]
        if len(set(keys)) < len(keys):
            raise InvalidRequestError("selections: a partition and source topic stand there twice")
        for selection in selections:
            _check_selection(selection)
        return await self._existing(group_id)

    async def _check_order(
        self, group_id: str, config: Mapping[str, str], selections: Sequence[LaneSelection]
    ) -> None:
        settings = settings_of(resolve_stored(config, self._context.group_defaults)[0])
        if settings.ordering != Ordering.KEY:
            return
        for selection in selections:
            if selection.keys is None or selection.source_partition is None:
                raise InvalidRequestError(
                    f"group {group_id!r} keeps order by key (share.ordering=key): the selection "
                    f"of {selection.topic}[{selection.partition}] must have keys and "
                    "source_partition"
                )

    async def check_reordering(self, group_id: str, config: GroupConfig) -> None:
        """Refuses order by key while there are lanes that can not keep it.

        Raises:
            InvalidConfigError: A redrive is under way that began without it.
        """
        if settings_of(config).ordering is not Ordering.KEY:
            return
        for row in await self._call(self._context.store.list_lanes):
            if row.key.group_id == group_id and row.key.home[1] < 0:
                raise InvalidConfigError(
                    "share.ordering=key: a redrive is under way that began without this order "
                    f"({row.key.name}[{row.key.partition}]). Wait until it is done, or take back "
                    "what was not handed out yet: `sharecoord dead-letters withdraw`",
                    metadata={"key": "share.ordering", "value": str(config.ordering)},
                )

    # -- opening --------------------------------------------------------------------------------

    async def look(self) -> None:
        """Opens the lanes of the store that are not served yet.

        Raises:
            SharecoordError: The store does not answer.
        """
        async with self._looking:
            store = self._context.store
            rows = {row.key: row for row in await self._call(store.list_lanes)}
            keys, unfinished = set(rows), set(rows)
            outboxes = await self._call(store.list_outboxes)
            keys |= {row.key for row in outboxes if row.key.lane and not row.closed}
            topics = {topic for key in keys for topic in (key.topic, key.served)}
            infos = await self._known_topics(topics) if keys else {}
            if infos is None:
                # Opened lanes are looked at once more before their records pass.
                infos = {}
            else:
                # No letter comes any more of a topic that is gone.
                refused = self._context.catalog.refusals
                unfinished = {
                    key
                    for key in unfinished
                    if _exists(infos, key) or key.topic in refused or key.served in refused
                }
            await self._close_void(rows.values(), infos)
            for group_id in {key.group_id for key in rows} - self._groups.keys():
                # In a fleet: a group that was not used here so far, or was deleted meanwhile.
                await self._groups.stored(group_id)
            epochs = {row.key: row.owner_epoch for row in rows.values()}
            if homes := self._homes(unfinished):
                found = await self._call(store.open_partitions, homes)
                epochs |= {row.key: row.owner_epoch for row in found}
            for group in self._groups.values():
                here = [key for key in keys if key.group_id == group.group_id]
                owned = {k.place: e for k, e in epochs.items() if k.group_id == group.group_id}
                group.shared_order.lanes_are(here, unfinished.intersection(here), owned)
                self._open(group, here, infos)
            self._context.lanes.all_known = not self._context.in_fleet

    def _homes(self, lanes: Iterable[PartitionKey]) -> list[PartitionKey]:
        """The partitions that letters of these lanes come from and that are served here."""
        found: dict[PartitionKey, None] = {}
        for lane in lanes:
            group = self._groups.get(lane.group_id)
            actor = None if group is None else group.partitions.get(lane.home)
            if actor is not None:
                found[actor.key] = None
        return list(found)

    async def _look_for(self, asked: list[None]) -> list[None]:
        await self.look()
        return asked

    async def _known_topics(self, topics: set[str]) -> Mapping[str, TopicInfo] | None:
        try:
            return await self._context.catalog.describe(sorted(topics))
        except SharecoordError as error:
            log.warning("topics of lanes not looked at", why=error.message)
            return None

    async def _close_void(
        self, rows: Iterable[PartitionRow], infos: Mapping[str, TopicInfo]
    ) -> None:
        """Closes lanes of a topic that was deleted and made again: their letters are gone."""
        for row in rows:
            info = infos.get(row.key.topic)
            if info is not None and info.topic_id != row.key.topic_id:
                close = self._context.store.close_partition
                await self._call(close, row.partition_id, owner_epoch=row.owner_epoch)
                log.warning("lane closed: its topic was made again", lane=row.key)

    def _open(
        self, group: GroupActor, keys: Iterable[PartitionKey], infos: Mapping[str, TopicInfo]
    ) -> None:
        found: dict[tuple[str, str], set[int]] = {}
        for key in keys:
            info = infos.get(key.topic)
            if info is None or info.topic_id == key.topic_id:
                found.setdefault((key.name, key.topic_id), set()).add(key.partition)
        for (name, topic_id), partitions in found.items():
            known = {key.partition for key in group.keys_of(name)}
            if not partitions <= group.opener.opened(name) or group.topic_ids.get(name) != topic_id:
                group.topic_found(name, TopicInfo(topic_id, tuple(sorted(partitions | known))))

    async def _call(self, work: Callable[..., T], *args: object, **named: object) -> T:
        return await self._context.caller.call(work, *args, **named)


def _key(group_id: str, selection: LaneSelection) -> PartitionKey:
    return PartitionKey(
        group_id,
        selection.topic,
        selection.topic_id,
        selection.partition,
        lane_of(selection.source_topic, selection.source_partition),
    )


def _exists(infos: Mapping[str, TopicInfo], key: PartitionKey) -> bool:
    """Whether the topics of a lane exist, that of the letters and that of the records."""
    letters, source = infos.get(key.topic), infos.get(key.served)
    if letters is None or source is None or letters.topic_id != key.topic_id:
        return False
    return key.home[1] in source.partitions


def _by_log(
    items: Iterable[T], key_of: Callable[[T], PartitionKey]
) -> dict[tuple[str, str, int], list[T]]:
    """Groups items by partition of a topic: each group goes into one transaction."""
    found: dict[tuple[str, str, int], list[T]] = {}
    for item in items:
        key = key_of(item)
        found.setdefault((key.topic, key.topic_id, key.partition), []).append(item)
    return found


def _check_selection(selection: LaneSelection) -> None:
    where = f"{selection.topic}[{selection.partition}]"
    if not selection.source_topic:
        raise InvalidRequestError(f"selections: source_topic of {where} is empty")
    if not selection.spans:
        raise InvalidRequestError(f"selections: {where} has no runs; leave it out")
    if len(selection.spans) > SPANS_MAX:
        raise LimitExceededError(
            f"{where} has {len(selection.spans)} runs of letters, {SPANS_MAX} are the most at "
            "once; narrow the filter and redrive in parts"
        )
    before = -1
    for first, last in selection.spans:
        if not before < first <= last:
            raise InvalidRequestError(
                f"selections: run [{first}, {last}] of {where} is not in order behind {before}"
            )
        before = last
    if selection.keys is not None:
        wanted = count(selection.spans) * KEY_HASH_BYTES
        if len(selection.keys) != wanted:
            raise InvalidRequestError(
                f"selections: keys of {where} have {len(selection.keys)} bytes, not {wanted}"
            )
