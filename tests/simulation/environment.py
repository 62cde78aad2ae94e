"""What coordinators of a simulation run on: logs, database, and the ways to both."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from sharecoord.core.changes import (
    CommitBatch,
    CommitResult,
    GroupRow,
    InFlightRow,
    JoinRefusal,
    LoadedPartition,
    MemberRow,
    PartitionChange,
    PartitionClaim,
    PartitionCommit,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
    PartitionStart,
)
from sharecoord.core.dispatch.schedule import DELIVER_AT_HEADER
from sharecoord.core.letters.lanes import Marking, Replayed, Selection, SelectionResult
from sharecoord.core.records import RecordChunk
from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.kafka.looks import SharedLooks
from sharecoord.ports import (
    FoundOffset,
    LogReading,
    LogSink,
    OffsetQuery,
    Stretch,
    TopicInfo,
)
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.fake_log import FakeLog
from tests.simulation.judges.judge import Judge
from tests.simulation.judges.shadow import RecordLog
from tests.simulation.processes import Process

P = ParamSpec("P")
T = TypeVar("T")

Place = tuple[str, int]

GROUP = "g"
"""The group of a life; others are side groups."""


class SimLog(FakeLog):
    """A fake cluster that tells the judge what its logs hold."""

    def __init__(self) -> None:
        super().__init__()
        self.known = RecordLog()

    def exists(self, topic: str) -> bool:
        """Whether the cluster has a topic."""
        return topic in self._topics

    def _key(self, topic: str, partition: int) -> tuple[str, int]:
        return self.topic_id(topic), partition

    def append(
        self,
        topic: str,
        count: int = 1,
        *,
        partition: int = 0,
        value: bytes | None = None,
        **more: Any,
    ) -> int:
        """Appends records whose value no other call's records have; `more`: key, headers."""
        end = self.log(topic, partition).log_end
        body = value or f"{self.topic_id(topic)}/{partition}/{self.known.appends}/{end}"
        text = body if isinstance(body, bytes) else body.encode()
        first = super().append(topic, count, partition=partition, value=text, **more)
        place, offsets = self._key(topic, partition), range(first, first + count)
        self.known.written_under(place, offsets, self.log(topic, partition).leader_epoch)
        self.known.appended(place, first, count, text)
        if (key := more.get("key")) is not None:
            self.known.keys.setdefault(place, {}).update(dict.fromkeys(offsets, key))
        at_ms = int(dict(more.get("headers") or ()).get(DELIVER_AT_HEADER) or 0)
        self.known.scheduled.setdefault(place, {}).update(dict.fromkeys(offsets, at_ms))
        return first

    def skip(self, topic: str, count: int = 1, *, partition: int = 0) -> None:
        """Offsets that no reader finds; whatever stands there has a leader epoch."""
        log, place = self.log(topic, partition), self._key(topic, partition)
        self.known.written_under(place, range(log.log_end, log.log_end + count), log.leader_epoch)
        super().skip(topic, count, partition=partition)
        self.known.reached(place, log.log_end)

    def compact(self, topic: str, offsets: Sequence[int], *, partition: int = 0) -> None:
        """Removes records."""
        super().compact(topic, offsets, partition=partition)
        gone = set(offsets)
        self.known.removed(self._key(topic, partition), lambda at: at in gone)

    def move_log_start(self, topic: str, offset: int, *, partition: int = 0) -> None:
        """Deletes records from the start."""
        super().move_log_start(topic, offset, partition=partition)
        place = self._key(topic, partition)
        self.known.starts[place] = offset
        self.known.removed(place, lambda at: at < offset)

    def truncate(self, topic: str, offset: int, *, partition: int = 0) -> None:
        """Loses records at the end."""
        super().truncate(topic, offset, partition=partition)
        self.known.removed(self._key(topic, partition), lambda at: at >= offset)

    def delete(self, topic: str, *, quiet: bool = False) -> None:
        """Deletes a topic; when it is made again at once, a quiet end goes unnoticed by reads.

        Kafka's clients follow a topic by its name: they go on reading at their old position.
        """
        for partition in self._topics[topic][1]:
            self.known.removed(self._key(topic, partition), lambda _: True)
        self.known.ended.add(self.topic_id(topic))
        if quiet:
            del self._topics[topic]
        else:
            super().delete(topic)


class _Watched:
    """A change of a share-partition that keeps what it decides."""

    def __init__(self, change: PartitionChange) -> None:
        self._change = change
        self.first, self.last, self.delayed_max = change.first, change.last, change.delayed_max
        self.commit: PartitionCommit | None = None

    def decide(
        self, loaded: LoadedPartition, named: Sequence[InFlightRow]
    ) -> PartitionCommit | None:
        self.commit = self._change.decide(loaded, named)
        return self.commit


class SimStore(MemoryStore):
    """A handle of one coordinator on the database; the judge hears what takes effect."""

    def __init__(self, database: MemoryDatabase, judge: Judge, *, fleet: bool) -> None:
        super().__init__(database, fleet=fleet, check_ranges=True)
        self._judge = judge

    def commit(self, batch: CommitBatch) -> CommitResult:
        result = super().commit(batch)
        for part in batch.partitions:
            if part.partition_id not in result.fenced:
                self._judge.committed(part)
        self._judge.transaction_over()
        return result

    def open_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionRow]:
        rows = super().open_partitions(keys)
        for row in rows:
            self._judge.opened(row)
            if row.head is not None:
                # What is added to the topic of a replay has one from the beginning.
                self._judge.initialised(row.partition_id, row.head)
        return rows

    def claim_partitions(self, claims: Sequence[PartitionClaim]) -> list[LoadedPartition | None]:
        loaded = super().claim_partitions(claims)
        for found in loaded:
            if found is not None:
                self._judge.claimed(found.row)
        return loaded

    def release_partitions(self, releases: Sequence[PartitionRelease]) -> None:
        super().release_partitions(releases)
        for partition_id, _ in releases:
            partition = self.database.partitions.get(partition_id)
            if partition is not None and partition.row.owner is None:
                self._judge.released(partition_id)

    def join_members(self, members: Sequence[MemberRow]) -> list[int | JoinRefusal]:
        epochs = super().join_members(members)
        for member, epoch in zip(members, epochs, strict=True):
            if isinstance(epoch, JoinRefusal):
                # It has joined elsewhere meanwhile.
                continue
            self._judge.member_written(member.member_id, epoch, repeats=not self._fleet)
        return epochs

    def initialize_partitions(self, starts: Sequence[PartitionStart]) -> list[bool]:
        done = super().initialize_partitions(starts)
        for start, ok in zip(starts, done, strict=True):
            if ok:
                self._judge.initialised(start.partition_id, start.head)
        return done

    def close_partition(self, partition_id: int, *, owner_epoch: int) -> None:
        super().close_partition(partition_id, owner_epoch=owner_epoch)
        partition = self.database.partitions.get(partition_id)
        if partition is not None and partition.row.closed:
            self._judge.closed(partition_id)

    def save_group_config(
        self, group_id: str, *, set_values: Mapping[str, str], deleted: Sequence[str]
    ) -> GroupRow:
        row = super().save_group_config(group_id, set_values=set_values, deleted=deleted)
        if group_id != GROUP:
            return row
        if "share.delivery.count.limit" in set_values:
            self._judge.limit_changed(int(set_values["share.delivery.count.limit"]))
        if "share.ordering" in set_values:
            self._judge.order.switched(kept=set_values["share.ordering"] == "key")
        return row

    def save_blocked_keys(
        self, group_id: str, *, blocked: Mapping[bytes, str], unblocked: Sequence[bytes]
    ) -> GroupRow:
        row = super().save_blocked_keys(group_id, blocked=blocked, unblocked=unblocked)
        self._judge.order.blocked(entry.key for entry in row.blocked_keys)
        return row

    def reset_partitions(
        self, heads: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, PartitionRow]:
        rows = super().reset_partitions(heads)
        for row in rows.values():
            self._judge.reset(row)
        return rows

    def take_in(self, selections: Sequence[Selection], marking: Marking) -> list[SelectionResult]:
        found = super().take_in(selections, marking)
        for taken in found:
            partition = self.database.partitions[self.database.ids[taken.key]]
            rows = partition.in_flight
            self._judge.redriven(partition.row, rows, taken, again=marking.again)
        return found

    def withdraw(self, keys: Sequence[PartitionKey]) -> list[SelectionResult]:
        found = super().withdraw(keys)
        for taken in found:
            partition = self.database.partitions[self.database.ids[taken.key]]
            self._judge.withdrawn(partition.row, partition.in_flight, taken)
        return found

    def make_replay(
        self, parts: Sequence[Replayed], *, config: Mapping[str, str] | None = None
    ) -> bool:
        (into,) = {part.key.group_id for part in parts}
        before = self._others(into)
        done = super().make_replay(parts, config=config)
        if self._others(into) != before:
            self._judge.broken(f"a replay into {into} changes other groups")
        if done:
            found = [self.database.partitions[self.database.ids[part.key]] for part in parts]
            self._judge.replayed([(each.row, each.in_flight) for each in found])
        return done

    def _others(self, group_id: str) -> object:
        """All that the database has of other groups."""
        partitions = self.database.partitions.values()
        return copy.deepcopy(
            (
                [each for each in partitions if each.row.key.group_id != group_id],
                [row for name, row in self.database.groups.items() if name != group_id],
                [row for (name, _), row in self.database.members.items() if name != group_id],
            )
        )

    def change_partition(self, key: PartitionKey, change: PartitionChange) -> bool:
        watched = _Watched(change)
        done = super().change_partition(key, watched)
        if watched.commit is not None:
            self._judge.forced(watched.commit, watched.first, watched.last)
        return done

    def delete_topics(self, group_id: str, topics: Sequence[str]) -> int:
        before = set(self.database.ids)
        deleted = super().delete_topics(group_id, topics)
        self._judge.deleted(sorted(before - set(self.database.ids), key=str))
        for partition in self.database.partitions.values():
            if partition.row.head is None:
                self._judge.emptied(partition.row)
        return deleted


@dataclass
class StoreTrouble:
    """How a process's calls to the store go at present."""

    delay_s: float = 0.001
    down: bool = False
    fails: float = 0.0
    """Part of the calls that fail, one way or another."""


class StoreLink:
    """A process's way to the database: requests and answers travel, both can be lost.

    A request that has left a process is carried out even when the process dies meanwhile (or it
    is not: half of them). Calls are made in order, as by the committer's thread.
    """

    def __init__(
        self,
        process: Process,
        outside: contextvars.Context,
        chance: random.Random,
        trouble: StoreTrouble,
    ) -> None:
        self.trouble = trouble
        self.late_calls = 0
        self._process = process
        self._outside = outside
        self._chance = chance
        self._lock = asyncio.Lock()
        self._last_s = 0.0

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Waits its turn, then asks."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            name = function.__name__
            if self.trouble.down and name != "close":
                await asyncio.sleep(self.trouble.delay_s)
                raise StoreUnavailableError("the store is away", retry_after_ms=100)
            answer: asyncio.Future[T] = loop.create_future()
            at_s = self._last_s = max(self._last_s, loop.time() + self.trouble.delay_s)
            fate = self._fate(name)
            loop.call_at(
                at_s,
                lambda: self._arrives(answer, fate, lambda: function(*args, **kwargs)),
                context=self._outside,
            )
            return await answer

    def _fate(self, name: str) -> tuple[SharecoordError | None, bool]:
        """(error, whether the call takes effect)"""
        if self._chance.random() >= self.trouble.fails or name == "close":
            return None, True
        fates: list[tuple[SharecoordError, bool]] = [
            (StoreUnavailableError("away for a moment"), False),
            (StoreOutcomeUnknownError("unknown, not done"), False),
            (StoreOutcomeUnknownError("unknown, done"), True),
        ]
        if name == "commit":
            fates.append((InternalError("a row that is refused"), False))
        return self._chance.choice(fates)

    def _arrives(
        self,
        answer: asyncio.Future[T],
        fate: tuple[SharecoordError | None, bool],
        function: Callable[[], T],
    ) -> None:
        """The request is at the database, in no process's context."""
        if self._process.dead:
            if self._chance.random() < 0.5:
                return
            self.late_calls += 1
        error, happens = fate
        problem: Exception | None = error
        result: T | None = None
        if happens:
            try:
                result = function()
            except Exception as caught:  # noqa: BLE001 - it is the caller's
                problem = problem or caught
        loop = asyncio.get_running_loop()
        back_s = self._chance.choice((0.0, 0.0005))
        loop.call_later(back_s, _answer, answer, result, problem, context=self._process.context)

    def close(self) -> None:
        """Nothing to release."""


def _answer(answer: asyncio.Future[T], result: T, problem: Exception | None) -> None:
    if answer.done():
        return
    if problem is None:
        answer.set_result(result)
    else:
        answer.set_exception(problem)


class ProcessClock(RuntimeClock):
    """A process's own monotonic clock: no two machines' have the same origin."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead_ms: int) -> None:
        super().__init__(loop)
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


class LogView:
    """The logs as one process sees them: reads run inside of it."""

    def __init__(self, log: SimLog, process: Process) -> None:
        self._log = log
        self._process = process
        self._looks = SharedLooks(log.describe)
        self.refusals = log.refusals
        self._readings: list[_ViewReading] = []

    @property
    def open_bytes(self) -> int:
        """See `ports.LogReader`: its records are open."""
        return 0

    def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        last_epoch: int,
        committed: bool,
        sink: LogSink,
    ) -> LogReading:
        """Reads; see `ports.LogReader`."""
        reading = _ViewReading(self._process, sink)
        reading.inner = self._log.read(
            topic, partition, offset, last_epoch=last_epoch, committed=committed, sink=reading
        )
        self._readings = [r for r in self._readings if not r.closed]
        self._readings.append(reading)
        return reading

    async def reread(
        self, topic: str, partition: int, first: int, last: int, *, committed: bool
    ) -> list[RecordChunk]:
        """Reads again."""
        return await self._log.reread(topic, partition, first, last, committed=committed)

    def scan(
        self, topic: str, stretches: Sequence[Stretch]
    ) -> AsyncGenerator[tuple[int, RecordChunk], None]:
        """Reads stretches once."""
        return self._log.scan(topic, stretches)

    async def cluster_id(self) -> str:
        """Kafka's cluster id."""
        return self._log.cluster

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        """The topics that exist."""
        return await self._log.describe(topics)

    async def look(self, topic: str) -> TopicInfo | None:
        """A topic as it is now."""
        return await self._looks.look(topic)

    async def offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, int]:
        """Offsets at places."""
        return await self._log.offsets(queries, committed=committed)

    async def names(self) -> list[str]:
        """All topics."""
        return await self._log.names()

    async def find_offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, FoundOffset]:
        """Offsets at places, with the records' times."""
        return await self._log.find_offsets(queries, committed=committed)

    async def close(self) -> None:
        """Stops the reads of this process."""
        await self._looks.close()
        self.abandon()

    def abandon(self) -> None:
        """The process is gone: Kafka notices."""
        for reading in self._readings:
            reading.close()


class _ViewReading:
    """A read whose sink is called inside a process; `ports.LogReading` and `LogSink` in one."""

    def __init__(self, process: Process, sink: LogSink) -> None:
        self.inner: LogReading | None = None
        self.closed = False
        self.drained_s = 0.0
        """As of `ports.LogReading`; a frozen process hears of records long after that."""
        self._process = process
        self._sink = sink

    def want_more(self, *, wanted: bool) -> None:
        """Back-pressure."""
        if self.inner is not None:
            self.inner.want_more(wanted=wanted)

    def close(self) -> None:
        """Stops."""
        self.closed = True
        if self.inner is not None:
            self.inner.close()

    def _call(self, name: str, *args: object) -> None:
        if not self.closed:
            getattr(self._sink, name)(*args)

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Records."""
        self._process.post(self._chunk_came, asyncio.get_running_loop().time(), chunk)

    def _chunk_came(self, at_s: float, chunk: RecordChunk) -> None:
        self.drained_s = at_s
        self._call("on_chunk", chunk)

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        """The end."""
        self._process.post(self._call, "on_end", end_offset, last_epoch)

    def on_out_of_range(self) -> None:
        """The position is gone."""
        self._process.post(self._call, "on_out_of_range")

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut."""
        self._process.post(self._call, "on_diverged", epoch, end_offset)

    def on_gone(self) -> None:
        """The partition is gone."""
        self._process.post(self._call, "on_gone")
