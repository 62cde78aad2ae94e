"""A Consume stream whose member reads nothing: it ends, and says why once the member reads on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc

from sharecoord.api.grpc.consume import ConsumeStream
from sharecoord.runtime.memory.stalled_streams import STALLED_AFTER_S
from sharecoord.runtime.memory.use import use_of
from sharecoord.security.principals import Caller
from sharecoord.testing.virtual_time import virtual
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire import share_types_pb2 as types
from tests.access import access_of
from tests.unit.runtime.worlds import world_with
from tests.world import running


class AbortedError(Exception):
    """As gRPC ends a handler that aborts its call."""


class Call:
    """A call of gRPC whose member takes messages only while `taken` is set."""

    def __init__(self, first: service.ConsumeRequest) -> None:
        self._first: list[bytes] = [first.SerializeToString()]
        self.taken = asyncio.Event()
        self.messages: list[service.ConsumeResponse] = []
        self.status: tuple[Any, ...] = ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> bytes:
        if not self._first:
            await asyncio.Event().wait()
        return self._first.pop()

    async def write(self, frame: bytes) -> None:
        await self.taken.wait()
        self.messages.append(service.ConsumeResponse.FromString(frame))

    async def abort(self, *status: Any) -> None:
        self.status = status
        raise AbortedError


@virtual
async def test_the_session_is_free_at_once_and_the_error_comes_when_it_reads_on() -> None:
    async with running(world_with(10)) as coordinator:
        join = service.Join(group_id="g", member_id="deaf", topics=["orders"], protocol_version=1)
        credit = types.Credit(records_total=10, bytes_total=1 << 20)
        join.credit.CopyFrom(credit)
        call = Call(service.ConsumeRequest(join=join))
        stream = ConsumeStream(coordinator, call, Caller(), access_of(coordinator))  # type: ignore[arg-type]
        serving = asyncio.create_task(stream.run())
        await asyncio.sleep(STALLED_AFTER_S - 1)
        group = coordinator.groups["g"]
        session = group.session("deaf")
        whole = stream.unsent_bytes
        assert session.channel is stream
        await asyncio.sleep(2)
        assert session.channel is None
        assert 0 < stream.unsent_bytes < whole, "what is being written stays, the rest is dropped"
        assert use_of(group).send_buffers == 0, "another stream of it begins with nothing"
        assert not call.status
        call.taken.set()
        with contextlib.suppress(AbortedError):
            await serving
        code, text, *_ = call.status
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "member 'deaf' of group 'g' took nothing of its stream for 30 s" in text
        assert len(call.messages) == 1
        assert stream.unsent_bytes == 0
        await asyncio.sleep(60)
