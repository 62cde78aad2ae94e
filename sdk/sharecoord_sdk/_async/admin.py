"""`AsyncAdminClient`: the calls of an operator, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

# Before grpc: it sets what grpc reads when it is imported.
from sharecoord_sdk._grpc import encode, failure_of, open_aio_channel  # isort: skip
import grpc
from google.protobuf.message import Message

from sharecoord_sdk._admin import calls
from sharecoord_sdk._admin.calls import Call
from sharecoord_sdk._admin.errors import AdminError, kafka_broker
from sharecoord_sdk._admin.route import Route, speaks_kafka

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncAdminClient, P], Coroutine[Any, Any, T]]:
    @calls.looks_like(make)
    async def method(client: AsyncAdminClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await client._run(make(*args, **kwargs))

    return method


class AsyncAdminClient:
    """`AdminClient` for asyncio: the same calls, awaited. Use in one event loop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._route = Route(args, kwargs)
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._route.close()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    list_groups = _method(calls.list_groups)
    describe_groups = _method(calls.describe_groups)
    describe_group_configs = _method(calls.describe_group_configs)
    alter_group_configs = _method(calls.alter_group_configs)
    reset_offsets = _method(calls.reset_offsets)
    delete_offsets = _method(calls.delete_offsets)
    delete_groups = _method(calls.delete_groups)
    pause_group = _method(calls.pause_group)
    resume_group = _method(calls.resume_group)
    force_records = _method(calls.force_records)
    list_in_flight = _method(calls.list_in_flight)
    replay = _method(calls.replay)
    list_dead_letters = _method(calls.list_dead_letters)
    show_dead_letter = _method(calls.show_dead_letter)
    redrive_dead_letters = _method(calls.redrive_dead_letters)
    discard_dead_letters = _method(calls.discard_dead_letters)
    withdraw_redrive = _method(calls.withdraw_redrive)
    block_keys = _method(calls.block_keys)
    unblock_keys = _method(calls.unblock_keys)
    list_blocked_keys = _method(calls.list_blocked_keys)
    import_offsets = _method(calls.import_offsets)
    export_offsets = _method(calls.export_offsets)
    describe_coordinator = _method(calls.describe_coordinator)

    async def _run(self, call: Call[T]) -> T:
        route = self._route
        route.check()
        if route.must_be_found(call):
            await self.describe_coordinator()
        error: AdminError | None = None
        for address in route.addresses(call):
            try:
                answer = await self._send(address, call)
            except grpc.RpcError as raised:
                failure = failure_of(raised)
                error = route.failed(failure, address)
                may_be_kafka = route.may_be_kafka(failure)
                if may_be_kafka and await asyncio.to_thread(speaks_kafka, address):
                    error = kafka_broker(address)
                if not route.is_silent(failure):
                    break
            else:
                route.answered(address)
                return call.read(answer)
        assert error is not None, "there is one address at least"
        raise error

    async def _send(self, address: str, call: Call[Any]) -> Message:
        config = self._route.config
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_aio_channel(address, config.tls)
        method: Any = channel.unary_unary(
            call.path, request_serializer=encode, response_deserializer=call.answer.FromString
        )
        answer: Message = await method(
            call.request, timeout=config.api_timeout_s, metadata=self._route.metadata()
        )
        return answer
