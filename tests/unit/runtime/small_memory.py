"""A coordinator with little memory, for the tests of its limit."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from sharecoord.core.records import RecordChunk
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.kernel.budget import MemoryLimits
from sharecoord.runtime.kernel.context import Limits
from sharecoord.runtime.memory import watch as memory_module
from sharecoord.runtime.memory.use import MemoryLevel, use_of
from sharecoord.testing import fake_log
from sharecoord.testing.fake_log import FakeLog, FakeRecord, build_chunk
from tests.world import World, check_coordinator

LIMIT_BYTES = 1_000_000
RECORD_BYTES = 1_000
READ_BYTES = 50 * RECORD_BYTES
"""One read of the fake log."""

SLACK_BYTES = 4 * READ_BYTES
"""What may come between two looks: one read of each of the partitions of these tests."""


def world_of(*records: int, **defaults: str) -> World:
    """Topic `orders` with a partition for each number of records, 1 kB each in memory."""
    log = FakeLog()
    log.create("orders", len(records))
    for partition, count in enumerate(records):
        if count:
            log.append("orders", count, partition=partition)
    settings = {f"share.{name.replace('_', '.')}": value for name, value in defaults.items()}
    return World(log, defaults=settings)


@asynccontextmanager
async def limited(
    world: World, limits: MemoryLimits, *, checked: bool = True
) -> AsyncIterator[Coordinator]:
    """A coordinator with this memory limit; then the ledger is checked."""
    coordinator = world.build()
    coordinator.context.limits = Limits(memory=limits)
    coordinator.memory = memory_module.MemoryWatch(coordinator.context, coordinator.groups)
    await coordinator.start()
    yield coordinator
    check_coordinator(coordinator)
    await coordinator.drain()
    await coordinator.close()
    if checked:
        world.ledger.check()
    assert not world.fatal


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of 50 records that count 1 kB each (the ledger wants their offsets as values)."""

    def build(records: Sequence[FakeRecord], covers_from: int) -> RecordChunk:
        chunk = build_chunk(records, covers_from)
        return dataclasses.replace(chunk, size_bytes=RECORD_BYTES * chunk.count)

    monkeypatch.setattr(fake_log, "CHUNK_RECORDS_MAX", 50)
    monkeypatch.setattr(memory_module, "FRESH_BYTES_HIGH", READ_BYTES)
    monkeypatch.setattr("sharecoord.runtime.partition.topic_life.HELD_BYTES_HIGH", 1)
    monkeypatch.setattr(fake_log, "build_chunk", build)


def level_of(coordinator: Coordinator) -> MemoryLevel:
    """What is in force since the last look."""
    return coordinator.memory.figures.level


def total_now(coordinator: Coordinator) -> int:
    """All parts as they are at this moment, not as they were at the last look."""
    uses = [use_of(group) for group in coordinator.groups.values()]
    return coordinator.context.committer.committing_bytes + sum(use.used_bytes for use in uses)
