"""Links to the other coordinators of a fleet over gRPC: `sharecoord.ports.PeerNetwork`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import grpc
import structlog

from sharecoord import __version__
from sharecoord.core.fleet.belonging import NONCE_BYTES, Greeting, Side, proof_of, proves
from sharecoord.core.fleet.peering import Alive, GatewayItem, Settle
from sharecoord.core.limits import CHECKPOINT_BYTES_MAX
from sharecoord.errors import SharecoordError, UnauthenticatedError, UnsupportedVersionError
from sharecoord.ports import PeerListener
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair
from sharecoord.wire import PEER_PROTOCOL_VERSION, peer_codec
from sharecoord.wire import peer_service_pb2 as peer
from sharecoord.wire import peer_service_pb2_grpc as peer_grpc
from sharecoord.wire.send_queue import SendQueue
from sharecoord.wire.transport import keepalive

log = structlog.get_logger(__name__)

RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 1.0
"""Longest pause between attempts to reach a coordinator whose lease lives; doubles each time."""

WELCOME_S: Final = 2.0
"""A coordinator that does not answer within this time counts as not reached."""

ALIVE_S: Final = 1.0
"""How often the gateway reports its members as alive."""

OPTIONS: Final[list[tuple[str, Any]]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # An owner that is silent because the network is cut is given up after 8 s: until then items
    # for it have no answer. Its server permits pings at this rate.
    *keepalive(quiet_ms=5_000, answer_ms=3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A fleet lives on one network: a connection is tried again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy is there for other programs.
    ("grpc.enable_http_proxy", 0),
]


def channel_maker(
    pair: WatchedFiles[KeyPair] | None, *, peer_name: str = ""
) -> Callable[[str], grpc.aio.Channel]:
    """Channels to the other coordinators of a fleet, which all have certificates of one kind.

    Each channel is made with the pair as it is then. The others' certificates are checked against
    the authorities of clients, or, without these, against the own chain.

    Args:
        pair: Of this coordinator's listener; None = the fleet speaks clear text.
        peer_name: The name in the others' certificates (tls.peer.name); "" = that of their address.
    """
    if pair is None:
        return lambda address: grpc.aio.insecure_channel(address, OPTIONS)
    options = list(OPTIONS)
    if peer_name:
        options.append(("grpc.ssl_target_name_override", peer_name))

    def make(address: str) -> grpc.aio.Channel:
        now = pair.value
        roots = now.client_authorities or now.chain
        credentials = grpc.ssl_channel_credentials(roots, now.key, now.chain)
        return grpc.aio.secure_channel(address, credentials, options)

    return make


class GrpcPeerNetwork:
    """Keeps a link to every other coordinator, and makes it again when it breaks."""

    def __init__(
        self,
        coordinator_id: str,
        listener: PeerListener,
        make_channel: Callable[[str], grpc.aio.Channel],
        *,
        secret: bytes,
        secret_of: Callable[[str], bytes],
    ) -> None:
        """Starts nothing; `follow` connects.

        Args:
            coordinator_id: Of this coordinator.
            listener: Hears of links, and takes what comes over them.
            make_channel: Makes a channel to an address, with this fleet's credentials.
            secret: In the lease row of this coordinator.
            secret_of: Gives the secret in the lease row of another coordinator, by its id; b"" =
                there is none.
        """
        self._coordinator_id = coordinator_id
        self._listener = listener
        self._make_channel = make_channel
        self._secret = secret
        self._secret_of = secret_of
        self._keepers: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Keeps a link to each of these addresses, by coordinator id, and to no other."""
        for owner_id, (address, keeper) in list(self._keepers.items()):
            if addresses.get(owner_id) != address:
                keeper.cancel()
                del self._keepers[owner_id]
        for owner_id, address in addresses.items():
            if owner_id not in self._keepers:
                keeper = asyncio.create_task(
                    self._keep(owner_id, address), name=f"sharecoord-peer-{owner_id}"
                )
                self._keepers[owner_id] = address, keeper

    async def close(self) -> None:
        """Ends every link."""
        keepers = [keeper for _, keeper in self._keepers.values()]
        self.follow({})
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep(self, owner_id: str, address: str) -> None:
        delay_s = RETRY_S
        while True:
            try:
                async with self._make_channel(address) as channel:
                    if await self._serve(owner_id, channel):
                        delay_s = RETRY_S
            except (grpc.aio.AioRpcError, SharecoordError, TimeoutError) as error:
                log.info(
                    "no link to a coordinator", owner=owner_id, address=address, why=_why(error)
                )
            except Exception:
                log.exception("link to a coordinator failed", owner=owner_id, address=address)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _serve(self, owner_id: str, channel: grpc.aio.Channel) -> bool:
        """Serves a link from its begin to its end; returns True once the owner had answered."""
        call: Any = peer_grpc.PeerServiceStub(channel).Link()  # type: ignore[no-untyped-call]
        async with asyncio.timeout(WELCOME_S):
            await self._greet(owner_id, call)

        async def write(items: Sequence[GatewayItem]) -> None:
            await call.write(peer_codec.gateway_message(items))

        send_queue: SendQueue[GatewayItem] = SendQueue(
            write,
            size_of=_checkpoint_bytes,
            broken=lambda _: call.cancel(),
            # The owner takes no larger messages from a coordinator than from a client.
            bytes_max=CHECKPOINT_BYTES_MAX,
        )
        vouching = asyncio.create_task(_vouch(send_queue))
        try:
            hear = self._listener.linked(owner_id, send_queue)
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                for item in peer_codec.owner_items(message):
                    hear(item)
        except asyncio.CancelledError:
            # The call is cancelled when a write fails, the task when the coordinator is gone.
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
        finally:
            vouching.cancel()
            send_queue.close()
            call.cancel()
            self._listener.unlinked(owner_id)
        return True

    async def _greet(self, owner_id: str, call: Any) -> None:
        """Begins a link: the owner proves that it belongs to the fleet, then this gateway does.

        A stranger at the owner's address gets no proof from here.

        Raises:
            UnauthenticatedError: The other side is not the coordinator that the store knows.
            UnsupportedVersionError: The other side speaks another protocol.
        """
        hello = peer.Hello(
            coordinator_id=self._coordinator_id,
            owner_id=owner_id,
            version=__version__,
            protocol_version=PEER_PROTOCOL_VERSION,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        await call.write(peer.GatewayMessage(items=[peer.GatewayItem(hello=hello)]))
        welcome = _item(await call.read(), "welcome")
        peer_codec.check_version(welcome)
        greeting = Greeting(self._coordinator_id, owner_id, hello.nonce, welcome.nonce)
        if not proves(welcome.proof, Side.OWNER, self._secret_of(owner_id), greeting):
            raise UnauthenticatedError(
                f"the process at that address has not proven to be coordinator {owner_id}: it has "
                "just been started anew, or it is a stranger"
            )
        proof = peer.Proof(proof=proof_of(Side.GATEWAY, self._secret, greeting))
        await call.write(peer.GatewayMessage(items=[peer.GatewayItem(proof=proof)]))
        _item(await call.read(), "accepted")


def _checkpoint_bytes(item: GatewayItem) -> int:
    """Bytes of the checkpoints of an item: all that can be large in it."""
    if not isinstance(item, Settle):
        return 0
    return sum(len(each.checkpoint) for each in item.ranges if each.checkpoint)


async def _vouch(send_queue: SendQueue[GatewayItem]) -> None:
    while True:
        await asyncio.sleep(ALIVE_S)
        send_queue.say(Alive())


def _item(message: Any, name: Literal["welcome", "accepted"]) -> Any:
    """The item of this name, with which a message of the owner begins."""
    if isinstance(message, peer.OwnerMessage) and message.items:
        first = message.items[0]
        if first.HasField(name):
            return getattr(first, name)
    raise UnsupportedVersionError("the other side is no coordinator of a fleet")


def _why(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
