"""PeerService: links of gateways whose members receive from this coordinator. No rules here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
import structlog

from sharecoord import __version__
from sharecoord.api.grpc.calls import ServicerContext, abort, unexpected
from sharecoord.core.delivery import Delivery
from sharecoord.core.fleet.peering import OwnerItem, Relayed
from sharecoord.errors import (
    DrainingError,
    InvalidRequestError,
    NotOwnerError,
    SharecoordError,
)
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.fleet.owner import GatewayLink
from sharecoord.wire import PROTOCOL_VERSION, codec, peer_codec
from sharecoord.wire import peer_service_pb2 as peer
from sharecoord.wire.send_queue import SendQueue

log = structlog.get_logger(__name__)

SILENCE_S: Final = 5.0
"""A gateway reports its members as alive each second; after this silence its link is given up."""


EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # its stubs leave it out


class _Way:
    """The way back to the gateway of a link."""

    def __init__(self, context: ServicerContext) -> None:
        self._context = context
        self._send_queue: SendQueue[OwnerItem] = SendQueue(
            self._write,
            size_of=lambda item: item.size_bytes if isinstance(item, Relayed) else 0,
            broken=self._broken,
        )
        self.say = self._send_queue.say
        self.close = self._send_queue.close

    @property
    def unsent_bytes(self) -> int:
        """Bytes of payloads that wait."""
        return self._send_queue.unsent_bytes

    def frame(self, delivery: Delivery, now_ms: int) -> object:
        """A ConsumeResponse as bytes."""
        return codec.delivery_frame(delivery, now_ms)

    async def _write(self, items: Sequence[OwnerItem]) -> None:
        await self._context.write(peer_codec.owner_message(items))

    def _broken(self, error: Exception) -> None:
        """Logs a broken link; the reader ends it."""
        # Never the peer: when the call is over, asking for it ends the process (grpcio 1.85).
        log.debug("a link broke", why=str(error))


class PeerService:
    """PeerService of peer_service.proto."""

    def __init__(self, coordinator: Coordinator, fleet: Fleet) -> None:
        self._coordinator = coordinator
        self._fleet = fleet
        self._links: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def stop(self) -> None:
        """Ends every link and takes no new one: gateways find the next owners."""
        self._stopping = True
        for task in self._links:
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def link(self, _: object, context: ServicerContext) -> None:
        """Serves the link of a gateway, from its hello to its end."""
        way = _Way(context)
        task = asyncio.current_task()
        assert task is not None, "gRPC runs handlers in tasks"
        self._links.add(task)
        try:
            if self._stopping:
                raise DrainingError.of_this_coordinator()
            hello = await self._greet(context)
            link = GatewayLink(
                self._coordinator.context,
                self._coordinator.groups,
                self._fleet.look_now,
                hello.coordinator_id,
                way,
            )
            self._fleet.gateway_came(link)
            try:
                await self._serve(link, context)
            finally:
                self._fleet.gateway_went(link)
        except SharecoordError as error:
            await abort(context, error)
        except TimeoutError:
            log.warning("a gateway is silent; its link ends")
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            # gRPC does not tell the other side that a handler was cancelled.
            await abort(context, DrainingError.of_this_coordinator())
        except Exception as error:  # noqa: BLE001 - whatever it is, the gateway must hear of it
            await abort(context, unexpected("Link", error))
        finally:
            self._links.discard(task)
            way.close()

    async def _greet(self, context: ServicerContext) -> peer.Hello:
        async with asyncio.timeout(SILENCE_S):
            first = await context.read()
        if first is EOF or not first.items or not first.items[0].HasField("hello"):
            raise InvalidRequestError("the first item of a link must be hello")
        hello: peer.Hello = first.items[0].hello
        mine = self._fleet.coordinator_id
        if hello.owner_id != mine:
            raise NotOwnerError(f"this is coordinator {mine}, not {hello.owner_id}")
        peer_codec.check_version(hello)
        welcome = peer.Welcome(
            coordinator_id=mine, version=__version__, protocol_version=PROTOCOL_VERSION
        )
        await context.write(peer.OwnerMessage(items=[peer.OwnerItem(welcome=welcome)]))
        return hello

    @staticmethod
    async def _serve(link: GatewayLink, context: ServicerContext) -> None:
        # A newer link of the gateway closes it; should that be the stale one, it connects again.
        while not link.closed:
            async with asyncio.timeout(SILENCE_S):
                message = await context.read()
            if message is EOF:
                return
            for item in peer_codec.gateway_items(message):
                link.hear(item)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Method handlers for `grpc.aio.Server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(
            "sharecoord.peer.v1.PeerService",
            {
                "Link": grpc.stream_stream_rpc_method_handler(
                    self.link,
                    request_deserializer=peer.GatewayMessage.FromString,
                    response_serializer=peer.OwnerMessage.SerializeToString,
                )
            },
        )
