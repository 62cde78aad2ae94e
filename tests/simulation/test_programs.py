"""Plain programs in a group that keeps order: nothing comes early, and all gets done."""

from __future__ import annotations

import asyncio
import contextvars
import random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from sharecoord_sdk._core.columns import AckDetails, Span

from sharecoord.core.changes import PartitionKey
from sharecoord.testing.virtual_time import virtual
from tests.simulation.environment import GROUP
from tests.simulation.programs import ACCEPT, RELEASE, Program
from tests.unit.runtime.worlds import until, world_with
from tests.world import running

MEMBERS = 8
KEYS = 50
RELEASED = 0.2
DELAYS_MS = (0, 20, 100)


class Shop(Program):
    """Takes the records of a poll one after the other, releases some, and commits.

    It does nothing for the sake of order: not even for two records of a key in one poll.
    """

    def __init__(self, name: str, done: dict[int, int], chance: random.Random, node: Any) -> None:
        judge: Any = mock.Mock(programs={})
        super().__init__(
            name,
            judge,
            chance,
            ("orders",),
            lambda: [node],
            explicit=True,
            most=500,
            lock_s=30,
            trace=lambda _: None,
        )
        self._done = done

    async def _treats(self, spans: list[Span]) -> None:
        for span in spans:
            columns = span.columns
            for row in range(span.start, span.stop):
                released = self._chance.random() < RELEASED
                columns.states[row] = RELEASE if released else ACCEPT
                if released:
                    delay_ms = self._chance.choice(DELAYS_MS)
                    columns.details = {**(columns.details or {}), row: AckDetails(delay_ms)}
                else:
                    offset = columns.offset_at(row)
                    self._done[offset] = self._done.get(offset, 0) + 1
        ticket = self._core.begin_commit(self._now())
        while not ticket.is_done:
            self._drive()
            await self._wait(0.2)
        # So what it accepted is done.
        assert list(ticket.results.values()) == [None]


@pytest.mark.parametrize(("ordering", "records"), [("key", 1_000), ("partition", 300)])
@virtual
async def test_nothing_is_given_before_an_earlier_record_of_its_key_is_done(
    ordering: str, records: int
) -> None:
    chance = random.Random(1)
    # With one limit of five, one record in three thousand would be worn out by releases alone.
    world = world_with(0, ordering=ordering, delivery_count_limit="100")
    keys = [min(KEYS, int(chance.paretovariate(1.0))) for _ in range(records)]
    for key in keys:
        world.log.append("orders", 1, key=b"%d" % key)
    done: dict[int, int] = {}
    early: list[tuple[int, int]] = []
    given = 0

    def look(_: str, key: PartitionKey, offset: int, token: int) -> None:
        nonlocal given
        given += 1
        early.extend(
            (before, offset)
            for before in range(offset)
            if (ordering == "partition" or keys[before] == keys[offset]) and before not in done
        )

    async with running(world) as coordinator:
        here = SimpleNamespace(context=contextvars.copy_context(), frozen=False)
        outside = SimpleNamespace(outside=contextvars.copy_context())
        node = SimpleNamespace(name="c1", coordinator=coordinator, process=here, fleet=outside)
        shops = [Shop(f"m{n}", done, random.Random(n), node) for n in range(MEMBERS)]
        for shop in shops:
            shop._judge.given = look  # type: ignore[method-assign, assignment]
        tasks = [asyncio.create_task(shop.live()) for shop in shops]
        await until(lambda: len(done) == records, step_s=0.1)
        await until(lambda: world.start_offset(GROUP, "orders") == records, step_s=0.1)
        for task in tasks:
            assert not task.done(), "no assertion of it failed"
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for shop in shops:
            await shop.leave()
    assert early == []
    assert set(done.values()) == {1}
    # 20% come again, and nothing else does.
    assert given < records * 1.4
