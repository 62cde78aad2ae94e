"""Loops that must never end, and what is seen of one that does."""

from __future__ import annotations

import asyncio
import itertools
from typing import NoReturn

import pytest
import structlog

from sharecoord.errors import SharecoordError, StoreFatalError, StoreInUseError
from sharecoord.runtime import coordinator as coordinator_module
from sharecoord.runtime.coordinator import LOG_START_INTERVAL_S
from sharecoord.runtime.fleet.gateway import Gateway
from sharecoord.runtime.group import log_changes
from sharecoord.runtime.group.admission import Admission
from sharecoord.runtime.group.idle import IdleWatch
from sharecoord.runtime.group.offsets_export import OffsetsExporter
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.kernel.supervisor import PROVEN_S, RESTART_MAX_S, RESTART_S, Supervisor
from sharecoord.runtime.letters.orphans import OrphanWatch
from sharecoord.runtime.memory.watch import MemoryWatch
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import now_s, world_with
from tests.world import running


class Loop:
    """Fails so often at its first step, then goes on for ever."""

    def __init__(self, error: BaseException | None, *, times: int) -> None:
        self.error = error
        self.times = times
        self.begun_s: list[float] = []

    async def run(self) -> None:
        self.begun_s.append(now_s())
        if len(self.begun_s) <= self.times:
            if self.error is None:
                return
            raise self.error
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [ValueError("unforeseen"), None], ids=["raises", "returns"])
@virtual
async def test_a_loop_that_ends_begins_again_and_is_down_until_proven(
    error: Exception | None,
) -> None:
    supervisor = Supervisor(list[SharecoordError]().append)
    loop = Loop(error, times=3)
    with structlog.testing.capture_logs() as lines:
        task = supervisor.keep("idle", loop.run)
        await asyncio.sleep(RESTART_S * 7.5)
    waits = [RESTART_S, RESTART_S * 2, RESTART_S * 4]
    assert loop.begun_s == pytest.approx([0, waits[0], sum(waits[:2]), sum(waits)])
    assert (supervisor.down, supervisor.restarts) == (("idle",), {"idle": 3})
    failed = [line for line in lines if line["log_level"] == "error"]
    assert [line["loop"] for line in failed] == ["idle"] * 3
    assert all(line.get("exc_info") for line in failed) == (error is not None)
    await asyncio.sleep(PROVEN_S)
    assert (supervisor.down, supervisor.restarts) == ((), {"idle": 3})
    task.cancel()
    await asyncio.wait([task])


@virtual
async def test_waits_are_bounded_and_begin_anew_after_a_good_time() -> None:
    supervisor = Supervisor(list[SharecoordError]().append)
    begun_s: list[float] = []

    async def fails() -> None:
        begun_s.append(now_s())
        if len(begun_s) == 12:
            await asyncio.sleep(2 * PROVEN_S)
        raise ValueError("unforeseen")

    with structlog.testing.capture_logs():
        task = supervisor.keep("beat", fails)
        await asyncio.sleep(60)
    waits = [after - before for before, after in itertools.pairwise(begun_s)]
    assert waits[10] == pytest.approx(RESTART_MAX_S)
    assert waits[11] == pytest.approx(2 * PROVEN_S + RESTART_S)
    task.cancel()
    await asyncio.wait([task])


@virtual
async def test_a_cancelled_loop_ends_and_one_whose_answer_was_cancelled_does_not() -> None:
    supervisor = Supervisor(list[SharecoordError]().append)
    loop = Loop(asyncio.CancelledError(), times=1)
    task = supervisor.keep("topics", loop.run)
    await asyncio.sleep(1)
    assert len(loop.begun_s) == 2
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert len(loop.begun_s) == 2


@pytest.mark.parametrize("error", [StoreFatalError("disk"), StoreInUseError("taken")])
@virtual
async def test_what_ends_the_process_is_not_held_up(error: SharecoordError) -> None:
    supervisor = Supervisor(list[SharecoordError]().append)
    task = supervisor.keep("lease", Loop(error, times=1).run)
    await asyncio.wait([task])
    assert task.exception() is error


WORK_OF = {
    "admission": (Admission, "look"),
    "beat": (RuntimeClock, "beat"),
    "fleet": (Gateway, "forget_ended"),
    "idle": (IdleWatch, "look"),
    "lease": (MemoryStore, "renew_lease"),
    "log-starts": (log_changes, "follow_log_starts"),
    "memory": (MemoryWatch, "_look_safely"),
    "offsets-export": (OffsetsExporter, "_follow_settings"),
    "outboxes": (OrphanWatch, "look"),
    "topics": (coordinator_module, "_wanted"),
}
"""By loop: something that it calls outside of what it guards itself."""


def unforeseen(*_: object, **__: object) -> NoReturn:
    raise ValueError("unforeseen")


@pytest.mark.parametrize("name", WORK_OF)
@virtual
async def test_a_coordinator_is_not_ready_while_one_of_its_loops_is_down(name: str) -> None:
    world = world_with(10)
    coordinator = world.build(fleet=True)
    await coordinator.start()
    await coordinator.groups.open("g")
    board = StatusBoard()
    await asyncio.sleep(1)
    owner, attribute = WORK_OF[name]
    with pytest.MonkeyPatch.context() as monkeypatch, structlog.testing.capture_logs():
        monkeypatch.setattr(owner, attribute, unforeseen)
        # The one that is looked at least often.
        await asyncio.sleep(LOG_START_INTERVAL_S)
        board.update(coordinator)
        assert board.alive
        assert not board.ready
        assert board.latest is not None
        assert board.latest.loops_down == {each: each == name for each in WORK_OF}
        assert board.latest.loop_restarts[name] >= 1
        if name != "lease":
            assert name in board.not_ready
    await asyncio.sleep(RESTART_MAX_S + PROVEN_S)
    assert not coordinator.context.tasks.down
    board.update(coordinator)
    assert board.not_ready == ""
    await coordinator.close()


@virtual
async def test_readiness_needs_no_new_snapshot_to_see_a_loop_go_down() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        board = StatusBoard()
        board.update(coordinator)
        assert board.ready
        with structlog.testing.capture_logs():
            coordinator.context.tasks.keep("status", Loop(ValueError("unforeseen"), times=99).run)
            await asyncio.sleep(1)
        assert "status" in board.not_ready


@virtual
async def test_who_can_not_renew_its_lease_hands_out_nothing_when_it_has_lapsed() -> None:
    world = world_with(0)
    async with world.one_member(max_poll_records=10) as (coordinator, member):
        await asyncio.sleep(1.5)
        with pytest.MonkeyPatch.context() as monkeypatch, structlog.testing.capture_logs():
            monkeypatch.setattr(MemoryStore, "renew_lease", unforeseen)
            await asyncio.sleep(2)
            told = [coordinator.store_ok]
            world.log.append("orders", 3)
            await member.take(3)
            await asyncio.sleep(3)
            told.append(coordinator.store_ok)
            world.log.append("orders", 4)
            await asyncio.sleep(5)
            assert member.received == 3
        await member.take(4)
        told.append(coordinator.store_ok)
        assert told == [True, False, True]


@virtual
async def test_a_loop_that_waits_for_a_gathered_call_ends_with_its_coordinator() -> None:
    world = world_with(0)
    coordinator = await world.start()
    context = coordinator.context

    async def look() -> None:
        await context.lanes.ask(None)
        await asyncio.Event().wait()

    world.caller.delay_s = 5.0
    task = context.tasks.keep("looks", look)
    await asyncio.sleep(1)
    assert not task.done(), "the store is slow"
    with structlog.testing.capture_logs() as lines:
        await coordinator.close()
    assert task.cancelled()
    assert context.tasks.restarts["looks"] == 0
    assert [line for line in lines if line["log_level"] == "error"] == []
