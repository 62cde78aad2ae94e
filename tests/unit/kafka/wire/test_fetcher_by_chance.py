"""Whatever happens to brokers, leaders, sessions: each batch comes once, in order, in the end."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from sharecoord.errors import UnauthorizedError
from sharecoord.kafka.wire import fetch
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.fetcher import Fetcher, Fetching
from sharecoord.testing.virtual_time import virtual
from tests.unit.kafka.wire.fake_kafka import HEADER, FakeKafka, Log

PARTITIONS = 8
NODES = 3
STEPS = 150
PATIENCE_S = 120.0

PASSING = [
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.offset_not_available,
    ErrorCode.kafka_storage_error,
    ErrorCode.corrupt_message,
    ErrorCode.unknown_server_error,
    ErrorCode.topic_authorization_failed,
]
OF_SESSIONS = [
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
    ErrorCode.unknown_topic_id,
    ErrorCode.unknown_server_error,
]


class Sink:
    """Takes only what follows what it has."""

    def __init__(self) -> None:
        self.next = 0
        self.fetching: Fetching | None = None
        self.faults: list[str] = []
        self.fails = False

    def on_fetched(self, found: fetch.Found) -> int | None:
        if self.fails:
            self.fails = False
            raise RuntimeError("by chance")
        at = 0
        while len(found.records) - at >= HEADER.size:
            base, length, *_, last, _, _, _, _, _, _ = HEADER.unpack_from(found.records, at)
            at += 12 + length
            if at > len(found.records):
                break
            if base != self.next:
                self.faults.append(f"{base} came, {self.next} was due")
            self.next = base + last + 1
        return None

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        self.faults.append("diverged")

    def on_out_of_range(self) -> None:
        self.faults.append("out of range")

    def on_gone(self) -> None:
        self.faults.append("gone")

    def on_refused(self, error: UnauthorizedError) -> None:
        pass


class World:
    """A cluster in which things happen, and one who reads."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.kafka = FakeKafka(NODES, fetch_versions=self.chance.choice([(4, 12), (4, 17)]))
        self.kafka.remembers = self.chance.random() < 0.8
        logs = [Log(leader=1 + n % NODES) for n in range(PARTITIONS)]
        self.kafka.add("t", *logs)
        self.logs = logs
        self.cluster = self.kafka.cluster(patch)
        settings: dict[str, Any] = {
            "fetch.max.bytes": self.chance.choice([3_000, 4 << 20]),
            "max.partition.fetch.bytes": self.chance.choice([500, 2_000, 4 << 20]),
            "fetch.wait.max.ms": self.chance.choice([10, 500, 5000]),
        }
        self.fetcher = Fetcher(self.cluster, settings, committed=self.chance.random() < 0.5)
        self.sinks = [Sink() for _ in range(PARTITIONS)]
        for number in range(PARTITIONS):
            self.open(number)

    def open(self, number: int) -> None:
        sink = self.sinks[number]
        sink.fetching = self.fetcher.fetch("t", number, sink.next, -1, sink)

    def step(self) -> None:
        """Something happens."""
        number = self.chance.randrange(PARTITIONS)
        log, sink = self.logs[number], self.sinks[number]
        assert sink.fetching is not None
        what = self.chance.randrange(14)
        if what < 5:
            log.append(self.chance.randint(1, 5), self.chance.choice([0, 100, 1000, 6000]))
            self.kafka.notify()
        elif what < 7:
            sink.fetching.want_more(wanted=self.chance.random() < 0.5)
        elif what == 7:
            sink.fetching.close()
            self.open(number)
        elif what == 8:
            sink.fails = True
        else:
            self.break_something(log, what)

    def break_something(self, log: Log, what: int) -> None:
        """Something happens to the cluster."""
        node = self.chance.randint(1, NODES)
        if what == 9:
            log.leader, log.epoch = node, log.epoch + 1
        elif what == 10:
            log.error = int(self.chance.choice(PASSING)) if not log.error else 0
        elif what == 11:
            self.kafka.sessions.clear()
            self.kafka.error = int(self.chance.choice(OF_SESSIONS))
        elif what == 12:
            at = self.kafka.nodes[node]
            if at in self.kafka.down:
                self.kafka.down.discard(at)
                if self.chance.random() < 0.5:
                    self.kafka.first[at] = node
                    self.kafka.nodes[node] = Endpoint("node", self.chance.randint(10, 9000))
            else:
                self.kafka.down.add(at)
        else:
            self.kafka.throttle_s = self.chance.choice([0.0, 0.1, 1.0])
        self.kafka.notify()

    def heal(self) -> None:
        """From now on all is well."""
        self.kafka.down.clear()
        for log, sink in zip(self.logs, self.sinks, strict=True):
            log.error = 0
            log.append()
            assert sink.fetching is not None
            sink.fetching.want_more(wanted=True)
        self.kafka.notify()


async def lived(seed: int, patch: pytest.MonkeyPatch) -> None:
    world = World(seed, patch)
    for _ in range(STEPS):
        world.step()
        await asyncio.sleep(world.chance.choice([0, 0, 0.001, 0.003, 0.05, 0.3, 1]))
    world.heal()
    for _ in range(int(PATIENCE_S / 0.1)):
        if all(s.next == log.end for s, log in zip(world.sinks, world.logs, strict=True)):
            break
        await asyncio.sleep(0.1)
    ends = [(s.next, log.end) for s, log in zip(world.sinks, world.logs, strict=True)]
    assert [fault for sink in world.sinks for fault in sink.faults] == []
    assert all(got == end for got, end in ends), ends
    assert world.fetcher.buffered_bytes == 0
    before = len(world.kafka.fetches)
    await asyncio.sleep(10)
    polls_max = 10 / min(world.fetcher.options.wait_s, 0.05) * 2 * NODES
    assert len(world.kafka.fetches) - before <= polls_max
    await world.fetcher.close()
    await world.cluster.close()


@pytest.mark.parametrize(
    "seeds",
    [range(8), pytest.param(range(8, 500), marks=[pytest.mark.long, pytest.mark.timeout(900)])],
    ids=lambda seeds: f"{len(seeds)}",
)
def test_each_batch_comes_once_and_in_order(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in seeds:
        with capture_logs():
            try:
                virtual(lived)(seed, monkeypatch)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
