"""`AdminClient`: the calls of an operator, for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

# Before grpc: it sets what grpc reads when it is imported.
from sharecoord_sdk._grpc import encode, failure_of, open_channel  # isort: skip
import grpc
from google.protobuf.message import Message

from sharecoord_sdk._admin import calls
from sharecoord_sdk._admin.calls import Call
from sharecoord_sdk._admin.errors import AdminError, kafka_broker
from sharecoord_sdk._admin.route import Route, speaks_kafka
from sharecoord_sdk._core.credentials import TokenOutcome, metadata_of
from sharecoord_sdk._core.tls_files import TlsMaterial
from sharecoord_sdk._tokens import outcome_of, token_source

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate[AdminClient, P], T]:
    @calls.looks_like(make)
    def method(client: AdminClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return client._run(make(*args, **kwargs))

    return method


class AdminClient:
    """Admin calls of a coordinator, from any thread; `AsyncAdminClient` is for one event loop.

    The constructor starts nothing; the connection opens at the first call. Each process needs a
    client of its own.

    Args:
        config: Keys of `ShareConsumer`; `group.id` is not needed. Keywords are added to it.

    Raises:
        TypeError: Not a dict.
        InvalidConfigError: An unknown key, or a value out of bounds.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._route = Route(args, kwargs)
        self._token_source = token_source(self._route.config.sasl)
        self._token_lock = threading.Lock()
        # By address: what its channel was made with, and the channel; and the channel before.
        self._channels: dict[str, tuple[TlsMaterial | None, grpc.Channel]] = {}
        self._former: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. A second call does nothing."""
        self._route.close()
        with self._lock:
            channels = [channel for _, channel in self._channels.values()]
            channels += self._former.values()
            self._channels, self._former = {}, {}
        for channel in channels:
            channel.close()

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

    def _run(self, call: Call[T]) -> T:
        route = self._route
        route.check()
        if route.must_be_found(call):
            self.describe_coordinator()
        error: AdminError | None = None
        for address in route.addresses(call):
            try:
                answer = self._send(address, call)
            except grpc.RpcError as raised:
                failure = failure_of(raised)
                error = route.failed(failure, address)
                if route.may_be_kafka(failure) and speaks_kafka(address):
                    error = kafka_broker(address)
                if not route.is_silent(failure):
                    break
            else:
                route.answered(address)
                return call.read(answer)
        assert error is not None, "there is one address at least"
        raise error

    def _send(self, address: str, call: Call[Any]) -> Message:
        shown = self._authorization()
        try:
            return self._send_with(address, call, shown)
        except grpc.RpcError as raised:
            if not self._route.asks_anew(failure_of(raised), shown):
                raise
        # A refused call has changed nothing.
        return self._send_with(address, call, self._authorization())

    def _authorization(self) -> str:
        """What a call shows, after a fetch of a token that is due."""
        route = self._route
        if route.is_token_due:
            with self._token_lock:
                if route.begin_fetch():
                    # What interrupts the call ends the fetch: the next call begins another one.
                    outcome: TokenOutcome = ConnectionError("the fetch was interrupted")
                    try:
                        outcome = outcome_of(self._token_source)
                    finally:
                        route.token_came(outcome)
        return route.authorization()

    def _send_with(self, address: str, call: Call[Any], authorization: str) -> Message:
        channel = self._channel(address)
        method: Any = channel.unary_unary(
            call.path, request_serializer=encode, response_deserializer=call.answer.FromString
        )
        answer: Message = method(
            call.request,
            timeout=self._route.config.api_timeout_s,
            metadata=metadata_of(authorization),
        )
        return answer

    def _channel(self, address: str) -> grpc.Channel:
        """The channel to an address; another one when the files of TLS have changed."""
        tls = self._route.tls
        with self._lock:
            found = self._channels.get(address)
            if found is not None and found[0] == tls:
                return found[1]
            channel = open_channel(address, tls)
            self._channels[address] = tls, channel
            # Calls on the former one have the time between two rotations.
            older = None if found is None else self._former.pop(address, None)
            if found is not None:
                self._former[address] = found[1]
        if older is not None:
            older.close()
        return channel
