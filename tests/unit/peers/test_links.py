"""Links over real gRPC: greeted, in order, made again when they break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from sharecoord.api.grpc.peer_service import PeerService
from sharecoord.core.changes import PartitionKey
from sharecoord.core.fleet.belonging import NONCE_BYTES, SECRET_BYTES, Greeting, Side, proof_of
from sharecoord.core.fleet.peering import (
    AskLockBooks,
    Compared,
    Lend,
    LockBooks,
    MemberDown,
    MemberEnd,
    MemberUp,
    OwnerItem,
    Relayed,
    Returned,
    Settle,
    Settled,
)
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcknowledgeType, AcquireMode
from sharecoord.devenv.processes import free_ports
from sharecoord.peers.links import GrpcPeerNetwork, channel_maker
from sharecoord.ports import OwnerWay
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.store.memory.store import MemoryStore
from sharecoord.wire import peer_service_pb2 as peer
from sharecoord.wire import peer_service_pb2_grpc as peer_grpc
from sharecoord.wire import share_service_pb2 as service
from tests.unit.runtime.worlds import world_with

DEADLINE_S = 20
OWNER_SECRET, GATEWAY_SECRET = b"o" * SECRET_BYTES, b"g" * SECRET_BYTES


class Listener:
    """A gateway by hand."""

    def __init__(self) -> None:
        self.ways: asyncio.Queue[OwnerWay] = asyncio.Queue()
        self.gone: asyncio.Queue[str] = asyncio.Queue()
        self.items: asyncio.Queue[OwnerItem] = asyncio.Queue()

    def linked(self, owner_id: str, way: OwnerWay) -> Callable[[OwnerItem], None]:
        assert owner_id == "owner"
        self.ways.put_nowait(way)

        def hear(item: OwnerItem) -> None:
            if isinstance(item, AskLockBooks):
                way.say(LockBooks(item.key, item.owner_epoch, {}))
            self.items.put_nowait(item)

        return hear

    def unlinked(self, owner_id: str) -> None:
        self.gone.put_nowait(owner_id)

    async def next(self, kind: type[OwnerItem]) -> OwnerItem:
        """The next item of a kind."""
        while not isinstance(item := await self.items.get(), kind):
            pass
        return item


@contextlib.asynccontextmanager
async def serving(coordinator: Coordinator, address: str) -> AsyncIterator[PeerService]:
    fleet = coordinator.fleet
    assert fleet is not None
    server, service = grpc.aio.server(), PeerService(coordinator, fleet, secret=OWNER_SECRET)
    server.add_generic_rpc_handlers((service.handlers(),))
    server.add_insecure_port(address)
    await server.start()
    yield service
    await server.stop(None)


@contextlib.asynccontextmanager
async def pair(
    channel: Callable[[str], grpc.aio.Channel] = grpc.aio.insecure_channel,
) -> AsyncIterator[tuple[Coordinator, Listener, GrpcPeerNetwork]]:
    """An owner of topic `orders`, which nobody serves yet, and the network of a gateway."""
    world = world_with(6)
    store = MemoryStore(world.database, fleet=True)
    about = {"cluster_id": world.log.cluster, "address": "test:1", "version": "test"}
    store.open(coordinator_id="gateway", secret=GATEWAY_SECRET, **about)
    # Nobody renews this lease, and a slow machine takes longer than the first one lasts.
    store.renew_lease(duration_ms=10 * DEADLINE_S * 1_000)
    coordinator = world.build("owner", fleet=True)
    await coordinator.start()
    listener = Listener()
    network = GrpcPeerNetwork(
        "gateway",
        listener,
        channel,
        secret=GATEWAY_SECRET,
        secret_of={"owner": OWNER_SECRET}.__getitem__,
    )
    async with asyncio.timeout(DEADLINE_S):
        yield coordinator, listener, network
        await network.close()
    await coordinator.close()


@contextlib.asynccontextmanager
async def linked(tmp_path: Path, owner: str = "owner") -> AsyncIterator[tuple[Listener, str]]:
    """An owner that serves topic `orders`, and a gateway that follows it."""
    address = f"unix:{tmp_path}/peer"
    async with pair() as (coordinator, listener, network), serving(coordinator, address):
        network.follow({owner: address})
        yield listener, address


def up(handle: int, epoch: int = 1) -> MemberUp:
    topics, mode = ("orders",), AcquireMode.FAIR
    return MemberUp(handle, "g", "m", epoch, "c", "h", topics, mode, 0, frozenset(), [])


async def test_a_member_is_served_over_a_link(tmp_path: Path) -> None:
    async with linked(tmp_path) as (listener, _):
        way = await listener.ways.get()
        way.say(up(1))
        way.say(Lend(1, 4, 1 << 20, recalls=False))
        assert await listener.next(Compared) == Compared(1, [])
        got = await listener.next(Relayed)
        assert isinstance(got, Relayed)
        assert isinstance(got.frame, bytes)
        (batch,) = service.ConsumeResponse.FromString(got.frame).batches
        assert (batch.base_offset, batch.record_count) == (0, 4)
        assert got.records == 4
        (acquired,) = got.ranges
        accept = AcknowledgedRange(0, 3, AcknowledgeType.ACCEPT, acquired.lock_token, 0, None)
        way.say(Settle(1, 9, got.key, [accept], may_wait=False))
        settled = await listener.next(Settled)
        assert isinstance(settled, Settled)
        assert (settled.relay_id, settled.records, settled.result.error) == (9, 4, None)
        way.say(Lend(1, 0, 0, recalls=True))
        assert await listener.next(Returned) == Returned(1, 4, got.size_bytes)
        way.say(MemberDown(1, left=True))


async def test_a_member_that_joined_later_elsewhere_is_ended(tmp_path: Path) -> None:
    async with linked(tmp_path) as (listener, _):
        way = await listener.ways.get()
        way.say(up(1, epoch=5))
        way.say(up(2, epoch=4))
        end = await listener.next(MemberEnd)
        assert isinstance(end, MemberEnd)
        assert (end.handle, end.error.reason) == (2, "MEMBER_FENCED")


async def test_a_settlement_of_what_is_not_there_is_answered(tmp_path: Path) -> None:
    async with linked(tmp_path) as (listener, _):
        way = await listener.ways.get()
        way.say(up(1))
        key = PartitionKey("", "nothing", "", 3)
        accept = AcknowledgedRange(0, 3, AcknowledgeType.ACCEPT, 1, 0, None)
        way.say(Settle(1, 9, key, [accept], may_wait=False))
        settled = await listener.next(Settled)
        assert isinstance(settled, Settled)
        assert settled.result.error is not None
        assert settled.result.error.reason == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_a_link_that_breaks_is_made_again(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/peer"
    async with pair() as (coordinator, listener, network):
        network.follow({"owner": address})
        for _ in range(2):
            async with serving(coordinator, address):
                await listener.ways.get()
            assert await listener.gone.get() == "owner"


async def test_who_is_not_followed_any_more_has_no_link(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/peer"
    async with pair() as (coordinator, listener, network), serving(coordinator, address):
        network.follow({"owner": address})
        await listener.ways.get()
        network.follow({})
        assert await listener.gone.get() == "owner"


# -- a stranger at the owner's address -------------------------------------------------------------


@contextlib.asynccontextmanager
async def impostor(
    address: str, answer: Callable[[peer.Hello], peer.Welcome]
) -> AsyncIterator[asyncio.Queue[peer.GatewayItem | None]]:
    """Somebody who welcomes gateways by hand; what they say, and None when a call is over."""
    heard: asyncio.Queue[peer.GatewayItem | None] = asyncio.Queue()

    class Impostor(peer_grpc.PeerServiceServicer):
        async def Link(self, _: Any, context: Any) -> None:  # noqa: N802 - gRPC's name
            try:
                while (message := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    for item in message.items:
                        heard.put_nowait(item)
                        if item.HasField("hello"):
                            welcome = peer.OwnerItem(welcome=answer(item.hello))
                            await context.write(peer.OwnerMessage(items=[welcome]))
            finally:
                heard.put_nowait(None)

    server = grpc.aio.server()
    peer_grpc.add_PeerServiceServicer_to_server(Impostor(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(address)
    await server.start()
    yield heard
    await server.stop(None)


def welcome_under(secret: bytes, side: Side = Side.OWNER, owner_id: str = "owner") -> Any:
    """Welcomes with a proof that is made with this secret, of this side, for this owner."""

    def answer(hello: peer.Hello) -> peer.Welcome:
        nonce = b"n" * NONCE_BYTES
        greeting = Greeting(hello.coordinator_id, owner_id, hello.nonce, nonce)
        proof = proof_of(side, secret, greeting)
        return peer.Welcome(
            coordinator_id=owner_id, protocol_version=2, version="1", nonce=nonce, proof=proof
        )

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: peer.Welcome(protocol_version=2), id="no proof"),
        pytest.param(welcome_under(b"x" * SECRET_BYTES), id="another secret"),
        pytest.param(welcome_under(GATEWAY_SECRET), id="the gateway's secret"),
        pytest.param(welcome_under(OWNER_SECRET, side=Side.GATEWAY), id="the other side's proof"),
        pytest.param(welcome_under(OWNER_SECRET, owner_id="other"), id="another owner's"),
        pytest.param(lambda _: peer.Welcome(protocol_version=1), id="an older release"),
    ],
)
async def test_a_stranger_at_an_owners_address_gets_no_proof_and_no_link(
    tmp_path: Path, answer: Callable[[peer.Hello], peer.Welcome]
) -> None:
    address = f"unix:{tmp_path}/peer"
    async with pair() as (_, listener, network), impostor(address, answer) as heard:
        network.follow({"owner": address})
        for _ in range(2):  # Its second try is no different.
            item = await heard.get()
            assert item is not None
            assert item.HasField("hello")
            assert await heard.get() is None
        assert listener.ways.empty()
        assert listener.gone.empty()


async def test_each_hello_has_a_nonce_of_its_own(tmp_path: Path) -> None:
    address, nonces = f"unix:{tmp_path}/peer", set()

    def answer(hello: peer.Hello) -> peer.Welcome:
        nonces.add(hello.nonce)
        return peer.Welcome(protocol_version=2)

    async with pair() as (_, _, network), impostor(address, answer) as heard:
        network.follow({"owner": address})
        for _ in range(3):
            while await heard.get() is not None:
                pass
    assert len(nonces) >= 3
    assert {len(nonce) for nonce in nonces} == {NONCE_BYTES}


async def test_who_goes_down_ends_its_links_at_once(tmp_path: Path) -> None:
    """The server itself would wait for its whole grace: links have no end of their own."""
    address = f"unix:{tmp_path}/peer"
    async with pair() as (coordinator, listener, network), serving(coordinator, address) as peers:
        network.follow({"owner": address})
        await listener.ways.get()
        await peers.stop()
        assert await listener.gone.get() == "owner"
        await network.close()
        assert listener.ways.empty(), "no new link"


async def test_an_http_proxy_of_the_environment_is_for_other_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    async with (
        pair(channel_maker(None)) as (coordinator, listener, network),
        serving(coordinator, address),
    ):
        network.follow({"owner": address})
        await listener.ways.get()
