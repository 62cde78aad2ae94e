"""PeerService: links of gateways whose members receive from this coordinator. No rules here."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import structlog

from sharecoord import __version__
from sharecoord.api.grpc.calls import ServicerContext, abort, host_of, parsed, unexpected
from sharecoord.core.delivery import Delivery
from sharecoord.core.fleet.belonging import NONCE_BYTES, Greeting, Side, proof_of, proves
from sharecoord.core.fleet.peering import OwnerItem, Relayed
from sharecoord.errors import (
    DrainingError,
    InvalidRequestError,
    LimitExceededError,
    NotOwnerError,
    SharecoordError,
    StoreUnavailableError,
    UnauthenticatedError,
)
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.fleet.owner import GatewayLink
from sharecoord.wire import PEER_PROTOCOL_VERSION, codec, peer_codec
from sharecoord.wire import peer_service_pb2 as peer
from sharecoord.wire.peer_codec import quoted
from sharecoord.wire.record_batches import joined_batches
from sharecoord.wire.send_queue import SendQueue

log = structlog.get_logger(__name__)

SILENCE_S: Final = 5.0
"""A gateway reports its members as alive each second; after this silence its link is given up. The
proof that a link begins with may take as long."""

UNPROVEN_MAX: Final = 64
"""Most links at a time that have not proven yet that they belong to the fleet. A gateway needs some
milliseconds for that; of more links the oldest ends, so that silent strangers keep nobody out. Few,
because gRPC reads a message of each, of `limits.request.max.bytes`, before anybody looks at it."""

GREETING_BYTES_MAX: Final = 4 << 10
"""Largest message of a link before its proof: ids and versions are short."""

REFUSAL_LOGGED_EACH_S: Final = 1.0
"""Of refusals that follow faster upon each other the log has one, and says how many there were."""

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # its stubs leave it out

Refused = Callable[[str, SharecoordError], None]
"""Hears of each refused link: the address that it came from, and why. Does not wait."""


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

    def batches(self, delivery: Delivery) -> object:
        """See `GatewayWay`."""
        return joined_batches(delivery)

    async def _write(self, items: Sequence[OwnerItem]) -> None:
        await self._context.write(peer_codec.owner_message(items))

    def _broken(self, error: Exception) -> None:
        """Logs a broken link; the reader ends it."""
        # Never the peer: when the call is over, asking for it ends the process (grpcio 1.85).
        log.debug("a link broke", why=str(error))


class PeerService:
    """PeerService of peer_service.proto."""

    def __init__(
        self,
        coordinator: Coordinator,
        fleet: Fleet,
        *,
        secret: bytes,
        refused: Refused = lambda *_: None,
    ) -> None:
        """Serves nobody yet.

        Args:
            coordinator: Of a fleet.
            fleet: The fleet, as that coordinator sees it.
            secret: In the lease row of that coordinator.
            refused: Hears of each link that was refused.
        """
        self._coordinator = coordinator
        self._fleet = fleet
        self._secret = secret
        self._refused = refused
        self._links: set[asyncio.Task[Any]] = set()
        self._unproven: dict[asyncio.Task[Any], str] = {}
        """Links that have proven nothing yet, the oldest first, with the addresses they are of."""
        self._ends: dict[asyncio.Task[Any], SharecoordError] = {}
        """Why this side ends a link."""
        self._stopping = False
        self._logs_from_s = -math.inf
        self._not_logged = 0

    async def stop(self) -> None:
        """Ends every link and takes no new one: gateways find the next owners."""
        self._stopping = True
        for task in self._links:
            self._end(task, DrainingError.of_this_coordinator())
        await asyncio.gather(*self._links, return_exceptions=True)

    def _end(self, task: asyncio.Task[Any], error: SharecoordError) -> None:
        """Ends a link of ours; gRPC does not tell the other side that a handler was cancelled."""
        self._ends[task] = error
        task.cancel()

    async def link(self, _: object, context: ServicerContext) -> None:
        """Serves the link of a gateway, from its hello to its end."""
        task = asyncio.current_task()
        assert task is not None, "gRPC runs handlers in tasks"
        self._links.add(task)
        try:
            if self._stopping:
                raise DrainingError.of_this_coordinator()
            gateway_id = await self._let_in(task, context)
            await self._serve(gateway_id, context)
        except EOFError:
            log.debug("a link ended before its proof")
        except SharecoordError as error:
            await abort(context, error)
        except asyncio.CancelledError:
            if task not in self._ends:
                raise
            await abort(context, self._ends[task])
        except Exception as error:  # noqa: BLE001 - whatever it is, the gateway must hear of it
            await abort(context, unexpected("Link", error))
        finally:
            self._links.discard(task)
            self._ends.pop(task, None)

    # -- who gets in ----------------------------------------------------------------------------

    async def _let_in(self, task: asyncio.Task[Any], context: ServicerContext) -> str:
        """Returns the id of a gateway that has proven to belong to the fleet.

        Raises:
            SharecoordError: The other side has not proven that; the log and `refused` are told.
            EOFError: The other side went before that: it takes this one for a stranger, too.
        """
        # While the call is there for certain: see `_Way._broken`.
        address = host_of(context)
        if len(self._unproven) >= UNPROVEN_MAX:
            oldest, its_address = next(iter(self._unproven.items()))
            del self._unproven[oldest]
            error = LimitExceededError(
                f"{UNPROVEN_MAX} newer links wait for their proofs, too", retry_after_ms=1_000
            )
            self._say_refused(its_address, error)
            self._end(oldest, error)
        self._unproven[task] = address
        try:
            return await self._proven(context)
        except SharecoordError as refusal:
            self._say_refused(address, refusal)
            raise
        finally:
            self._unproven.pop(task, None)

    async def _proven(self, context: ServicerContext) -> str:
        try:
            async with asyncio.timeout(SILENCE_S):
                return await self._greet(context)
        except TimeoutError:
            raise UnauthenticatedError(
                f"no proof within {SILENCE_S:.0f} s that a coordinator of this fleet speaks"
            ) from None

    async def _greet(self, context: ServicerContext) -> str:
        hello = _greeting_item(await context.read(), "hello")
        mine = self._fleet.coordinator_id
        if hello.owner_id != mine:
            raise NotOwnerError(f"this is coordinator {mine}, not {quoted(hello.owner_id)}")
        peer_codec.check_version(hello)
        nonce = secrets.token_bytes(NONCE_BYTES)
        greeting = Greeting(hello.coordinator_id, mine, hello.nonce, nonce)
        welcome = peer.Welcome(
            coordinator_id=mine,
            version=__version__,
            protocol_version=PEER_PROTOCOL_VERSION,
            nonce=nonce,
            proof=proof_of(Side.OWNER, self._secret, greeting),
        )
        await context.write(peer.OwnerMessage(items=[peer.OwnerItem(welcome=welcome)]))
        shown = _greeting_item(await context.read(), "proof").proof
        await self._check(shown, greeting)
        await context.write(peer.OwnerMessage(items=[peer.OwnerItem(accepted=peer.Accepted())]))
        return greeting.gateway_id

    async def _check(self, shown: bytes, greeting: Greeting) -> None:
        """Refuses a gateway whose proof is not that of its lease row.

        Raises:
            UnauthenticatedError: It is a stranger.
            StoreUnavailableError: Nobody can tell: the store does not answer.
        """
        gateway_id, watch = greeting.gateway_id, self._coordinator.watch
        assert watch is not None, "a fleet is watched"
        if proves(shown, Side.GATEWAY, self._fleet.secret_of(gateway_id), greeting):
            return
        # It may have started since the last look.
        if not await watch.looked_anew():
            raise StoreUnavailableError(
                f"whether coordinator {quoted(gateway_id)} belongs to this fleet stands in the "
                "store, which does not answer",
                retry_after_ms=1_000,
            )
        if not proves(shown, Side.GATEWAY, self._fleet.secret_of(gateway_id), greeting):
            raise UnauthenticatedError(
                f"this is not coordinator {quoted(gateway_id)} of this fleet: no living one of "
                "that id has the secret that the proof was made with in its row of the store"
            )

    def _say_refused(self, address: str, error: SharecoordError) -> None:
        self._fleet.refused_links += 1
        self._refused(address, error)
        now_s = asyncio.get_running_loop().time()
        if now_s < self._logs_from_s:
            self._not_logged += 1
            return
        more, self._not_logged = self._not_logged, 0
        self._logs_from_s = now_s + REFUSAL_LOGGED_EACH_S
        log.warning("a link was refused", address=address, why=error.message, refused_before=more)

    # -- what goes over a link ------------------------------------------------------------------

    async def _serve(self, gateway_id: str, context: ServicerContext) -> None:
        way = _Way(context)
        link = GatewayLink(
            self._coordinator.context,
            self._coordinator.groups,
            self._fleet.look_now,
            gateway_id,
            way,
        )
        self._fleet.gateway_came(link)
        try:
            # A newer link of the gateway closes it; if that is the stale one, it connects again.
            while not link.closed:
                async with asyncio.timeout(SILENCE_S):
                    data = await context.read()
                if data is EOF:
                    return
                for item in peer_codec.gateway_items(parsed(peer.GatewayMessage, data)):
                    link.hear(item)
        except TimeoutError:
            log.warning("a gateway is silent; its link ends", gateway=gateway_id)
        finally:
            self._fleet.gateway_went(link)
            way.close()

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Method handlers for `grpc.aio.Server.add_generic_rpc_handlers`."""
        return grpc.method_handlers_generic_handler(
            "sharecoord.peer.v1.PeerService",
            {
                # Messages come as bytes: what a stranger sends is measured before it is opened.
                "Link": grpc.stream_stream_rpc_method_handler(
                    self.link, response_serializer=peer.OwnerMessage.SerializeToString
                )
            },
        )


def _greeting_item(data: Any, name: str) -> Any:
    """The one item of a message of a link's greeting: `hello`, later `proof`.

    Raises:
        InvalidRequestError: The message is not that, or is far too large for it.
        EOFError: There is none: the other side is gone.
    """
    if data is EOF:
        raise EOFError
    if len(data) <= GREETING_BYTES_MAX:
        message = parsed(peer.GatewayMessage, data)
        if len(message.items) == 1 and message.items[0].HasField(name):
            return getattr(message.items[0], name)
    raise InvalidRequestError(f"a link begins with hello and proof; {name} is missing here")
