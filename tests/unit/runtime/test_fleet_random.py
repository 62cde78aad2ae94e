"""Random lives of a group in a fleet on virtual time, each from one seed, judged by the ledger.

`SEED=17 pytest tests/unit/runtime/test_fleet_random.py` runs one of them again; `RUNS=5000` runs
more than usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import SharecoordError
from sharecoord.testing.harness import FakeMember, StreamBrokenError, VirtualStoreCaller
from sharecoord.testing.virtual_time import run_virtual
from tests.unit.runtime.fleets import Fleet, everything_finished
from tests.unit.runtime.worlds import at_work, until, world_with
from tests.world import TOPICS, check_coordinator

RUNS = 60
STEPS = 30
MEMBERS = 6
PARTITIONS = 6
FINISH_S = 400


class Run:
    """One random life."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choice = self.random.choice
        self.lock_s = choice([2, 10, 30])
        self.world = world_with(
            30,
            partitions=PARTITIONS,
            delivery_count_limit=choice(["2", "5", "50"]),
            record_lock_duration_ms=str(1000 * self.lock_s),
            # No session ends: a lock is valid until its time is over, wherever its worker joins.
            session_timeout_ms="60000",
        )
        self.appended = 30 * PARTITIONS
        self.fleet = Fleet(self.world)
        self.names = iter(f"c{n}" for n in range(1_000))
        self.working: dict[str, asyncio.Task[None]] = {}
        self.steps: list[str] = []

    # -- members --------------------------------------------------------------------------------

    async def connect(self, member: FakeMember) -> None:
        """Joins (again) somewhere, as long as it takes, and begins to work."""
        await self.stop_working(member)
        while True:
            coordinator = self.random.choice(list(self.fleet.all.values()))
            try:
                most = self.random.choice([0, 1, 7, 40])
                await member.join(coordinator, "g", TOPICS, max_poll_records=most)
                break
            except SharecoordError:
                await asyncio.sleep(0.1)
        self.working[member.member_id] = asyncio.create_task(self.work(member))

    async def stop_working(self, member: FakeMember) -> None:
        task = self.working.pop(member.member_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                raise task.exception() or AssertionError

    async def work(self, member: FakeMember) -> None:
        with contextlib.suppress(StreamBrokenError):
            while True:
                delivery = await member.next_delivery(timeout_s=1e9)
                await asyncio.sleep(self.random.choice([0, 0, 0.01, 0.2]))
                await self.treat(member, delivery)

    async def treat(self, member: FakeMember, delivery: Delivery) -> None:
        what = self.random.random()
        if what < 0.7:
            await member.settle(delivery)
        elif what < 0.8:
            await member.settle(delivery, AcknowledgeType.RELEASE)
        elif what < 0.85:
            await member.settle(delivery, AcknowledgeType.RETURN)
        elif what < 0.9:
            await member.settle(delivery, AcknowledgeType.RENEW)
            await asyncio.sleep(self.lock_s * 0.9)
            await member.settle(delivery)
        elif what < 0.95:
            await asyncio.sleep(self.lock_s * 1.2)
            await member.settle(delivery)

    def some_member(self) -> FakeMember | None:
        names = sorted(self.working)
        return self.world.members[self.random.choice(names)] if names else None

    # -- steps ----------------------------------------------------------------------------------

    async def more_records(self) -> None:
        count = self.random.randint(1, 60)
        self.world.log.append("orders", count, partition=self.random.randrange(PARTITIONS))
        self.appended += count

    async def member_joins(self) -> None:
        if len(self.working) < MEMBERS:
            await self.connect(self.world.member(f"m{len(self.world.members)}"))

    async def member_leaves(self) -> None:
        if member := self.some_member():
            await self.stop_working(member)
            member.leave()
            member.broken()

    async def stream_breaks(self) -> None:
        if member := self.some_member():
            await self.stop_working(member)
            if self.random.random() < 0.7:
                member.disconnect()
                await asyncio.sleep(self.random.choice([0, 0.01, 1, 20]))
            await self.connect(member)

    async def link_breaks(self) -> None:
        if self.world.peers.links:
            self.world.peers.cut(*self.random.choice(sorted(self.world.peers.links)))

    async def coordinator_comes(self) -> None:
        if len(self.fleet.all) < 4:
            await self.fleet.add(next(self.names))

    async def coordinator_dies(self) -> None:
        if len(self.fleet.all) < 2:
            return
        name = self.random.choice(sorted(self.fleet.all))
        orphans = self.members_of(name)
        await self.fleet.kill(name)
        for member in orphans:
            await self.connect(member)

    def members_of(self, name: str) -> list[FakeMember]:
        """Who has a stream there."""
        groups = list(self.fleet.all[name].groups.values())
        working = [self.world.members[n] for n in sorted(self.working)]
        return [member for member in working if member.group in groups]

    async def coordinator_drains(self) -> None:
        """As SIGTERM: its members work on until they are told to go."""
        if len(self.fleet.all) < 2:
            return
        name = self.random.choice(sorted(self.fleet.all))
        orphans = self.members_of(name)
        draining = asyncio.create_task(self.fleet.drain(name))
        for member in orphans:
            await until(lambda member=member: member.drained or draining.done(), step_s=0.01)  # type: ignore[misc]
            await self.connect(member)
        await draining

    async def coordinator_is_cut_off(self) -> None:
        """From the others and from the store, for longer than its lease or not; it lives on."""
        name = self.random.choice(sorted(self.fleet.all))
        caller = self.fleet.all[name].context.caller
        assert isinstance(caller, VirtualStoreCaller), "of this world"
        caller.down = True
        self.world.peers.cut_off.add(name)
        for pair in [pair for pair in self.world.peers.links if name in pair]:
            self.world.peers.cut(*pair)
        for member in self.members_of(name):
            if self.random.random() < 0.5 and len(self.fleet.all) > 1:
                await self.connect(member)
        await asyncio.sleep(self.random.choice([0.5, 3, 12]))
        caller.down = False
        self.world.peers.cut_off.discard(name)

    async def settings_change(self) -> None:
        """At one of them; the others hear of it."""
        store = self.random.choice(list(self.fleet.all.values())).context.store
        limit = str(self.random.choice([100, 400, 2_000]))
        values = {"share.partition.max.record.locks": limit}
        store.save_group_config("g", set_values=values, deleted=[])

    async def nothing(self) -> None:
        pass

    # -- the whole ------------------------------------------------------------------------------

    def next_step(self) -> Callable[[], Awaitable[None]]:
        weights: dict[Callable[[], Awaitable[None]], int] = {
            self.more_records: 20,
            self.member_joins: 15,
            self.member_leaves: 4,
            self.stream_breaks: 8,
            self.link_breaks: 8,
            self.coordinator_comes: 6,
            self.coordinator_dies: 5,
            self.coordinator_drains: 5,
            self.coordinator_is_cut_off: 5,
            self.settings_change: 2,
            self.nothing: 7,
        }
        return self.random.choices(list(weights), list(weights.values()))[0]

    async def live(self) -> None:
        await self.fleet.add(next(self.names), next(self.names))
        await self.member_joins()
        for _ in range(STEPS):
            step = self.next_step()
            self.steps.append(f"{asyncio.get_running_loop().time():.3f} {step.__name__}")
            await step()
            await asyncio.sleep(self.random.choice([0, 0.0005, 0.003, 0.1, 1, 3]))
            self.check()
        await self.finish()

    def check(self) -> None:
        for coordinator in self.fleet.all.values():
            check_coordinator(coordinator)
        self.world.ledger.check()

    async def finish(self) -> None:
        """Everybody goes, one well-behaved member stays: in the end nothing is left to do."""
        while member := self.some_member():
            await self.stop_working(member)
            member.leave()
            member.broken()
        last = self.world.member("last")
        await last.join(next(iter(self.fleet.all.values())), "g", TOPICS)
        async with at_work(last):
            async with asyncio.timeout(FINISH_S):
                await until(lambda: everything_finished(self.world, self.appended), step_s=0.5)
        self.check()
        await self.fleet.close()


async def live(seed: int) -> None:
    run = Run(seed)
    try:
        await run.live()
    except BaseException as error:
        error.add_note(f"SEED={seed}\n" + "\n".join(run.steps))
        raise


def seeds() -> list[int]:
    if "SEED" in os.environ:
        return [int(os.environ["SEED"])]
    return list(range(int(os.environ.get("RUNS", RUNS))))


@pytest.mark.parametrize("seed", seeds())
def test_a_random_life_in_a_fleet(seed: int) -> None:
    run_virtual(live(seed))
