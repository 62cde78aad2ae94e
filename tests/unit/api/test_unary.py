"""The unary calls, whose callers may go away at any moment."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from sharecoord.api.grpc.unary import UnaryCalls
from sharecoord.errors import SharecoordError, StoreUnavailableError
from sharecoord.security.principals import Caller
from sharecoord.testing.virtual_time import virtual
from sharecoord.wire import share_service_pb2 as service
from tests.unit.runtime.worlds import world_with
from tests.world import World, running

COMMIT_S = 0.5


async def joined(world: World, calls: UnaryCalls) -> service.LeaveRequest:
    """A member that has joined; what it leaves with."""
    join = service.Join(group_id="g", member_id="m", topics=["orders"], protocol_version=1)
    answer = await calls.join(service.JoinRequest(join=join), Caller())
    world.caller.delay_s = COMMIT_S
    epoch = answer.joined.member_epoch
    return service.LeaveRequest(group_id="g", member_id="m", member_epoch=epoch)


@virtual
async def test_a_caller_that_goes_away_while_it_leaves_breaks_nothing() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        calls = UnaryCalls(coordinator)
        leaving = asyncio.create_task(calls.leave(await joined(world, calls), Caller()))
        await asyncio.sleep(COMMIT_S / 2)
        leaving.cancel()
        with structlog.testing.capture_logs() as lines:
            await asyncio.sleep(5 * COMMIT_S)
        assert [line for line in lines if line["log_level"] == "error"] == []
        assert world.database.members == {}


@virtual
async def test_leaving_is_confirmed_when_it_is_stored_and_fails_when_it_is_not() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        calls = UnaryCalls(coordinator)
        request = await joined(world, calls)
        for _ in range(30):
            away: SharecoordError = StoreUnavailableError("away", retry_after_ms=50)
            world.store.fail_next(away, method="commit")
        with pytest.raises(StoreUnavailableError):
            await calls.leave(request, Caller())
        # It goes with the next commit, whosever that is.
        assert await coordinator.context.committed() is None
        assert world.database.members == {}
