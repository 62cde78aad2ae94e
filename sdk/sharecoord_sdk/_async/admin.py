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
from sharecoord_sdk._core.credentials import TokenOutcome, metadata_of
from sharecoord_sdk._core.tls_files import TlsMaterial
from sharecoord_sdk._tokens import async_token_source, outcome_of_async

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
        self._token_source = async_token_source(self._route.config.sasl)
        self._token_lock = asyncio.Lock()
        # By address: what its channel was made with, and the channel; and the channel before.
        self._channels: dict[str, tuple[TlsMaterial | None, grpc.aio.Channel]] = {}
        self._former: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._route.close()
        channels = [channel for _, channel in self._channels.values()]
        channels += self._former.values()
        self._channels, self._former = {}, {}
        for channel in channels:
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
    describe_access = _method(calls.describe_access)

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
        shown = await self._authorization()
        try:
            return await self._send_with(address, call, shown)
        except grpc.RpcError as raised:
            if not self._route.asks_anew(failure_of(raised), shown):
                raise
        # A refused call has changed nothing.
        return await self._send_with(address, call, await self._authorization())

    async def _authorization(self) -> str:
        """What a call shows, after a fetch of a token that is due."""
        route = self._route
        if route.is_token_due:
            async with self._token_lock:
                if route.begin_fetch():
                    # What interrupts the call ends the fetch: the next call begins another one.
                    outcome: TokenOutcome = ConnectionError("the fetch was interrupted")
                    try:
                        outcome = await outcome_of_async(self._token_source)
                    finally:
                        route.token_came(outcome)
        return route.authorization()

    async def _send_with(self, address: str, call: Call[Any], authorization: str) -> Message:
        channel = await self._channel(address)
        method: Any = channel.unary_unary(
            call.path, request_serializer=encode, response_deserializer=call.answer.FromString
        )
        answer: Message = await method(
            call.request,
            timeout=self._route.config.api_timeout_s,
            metadata=metadata_of(authorization),
        )
        return answer

    async def _channel(self, address: str) -> grpc.aio.Channel:
        """The channel to an address; another one when the files of TLS have changed."""
        tls = self._route.tls
        found = self._channels.get(address)
        if found is not None and found[0] == tls:
            return found[1]
        channel = open_aio_channel(address, tls)
        self._channels[address] = tls, channel
        if found is not None:
            # Calls on the former one have the time between two rotations.
            older, self._former[address] = self._former.get(address), found[1]
            if older is not None:
                await older.close(None)
        return channel
