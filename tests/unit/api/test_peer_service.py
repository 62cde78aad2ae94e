"""Who gets a link at an owner: a gateway that proves to be in the fleet, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from sharecoord.api.grpc import peer_service
from sharecoord.api.grpc.peer_service import GREETING_BYTES_MAX, PeerService
from sharecoord.core.fleet.belonging import (
    NONCE_BYTES,
    SECRET_BYTES,
    Greeting,
    Side,
    proof_of,
    proves,
)
from sharecoord.errors import SharecoordError, StoreUnavailableError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.store.memory.store import MemoryStore
from sharecoord.wire import peer_service_pb2 as peer
from tests.support import eventually_async
from tests.unit.runtime.worlds import world_with
from tests.world import World

DEADLINE_S = 30
LINK = "/sharecoord.peer.v1.PeerService/Link"
OWNER_SECRET, GATEWAY_SECRET = b"o" * SECRET_BYTES, b"g" * SECRET_BYTES
GOOD = Greeting("gateway", "owner", b"n" * NONCE_BYTES, b"")
Answer = Callable[[peer.Welcome], bytes]


class Call:
    """A link by hand, message by message."""

    def __init__(self, channel: Any) -> None:
        link = channel.stream_stream(LINK, response_deserializer=peer.OwnerMessage.FromString)
        self._call = link()

    async def send(self, data: bytes) -> None:
        await self._call.write(data)

    async def read(self) -> Any:
        """The first item of the next message; the status of a call that is over raises."""
        message = await self._call.read()
        assert message is not grpc.aio.EOF  # type: ignore[attr-defined]
        return message.items[0]

    async def hello(self, said: Greeting = GOOD, version: int = 2) -> peer.Welcome:
        """Says hello; the owner's welcome."""
        item = peer.GatewayItem()
        item.hello.coordinator_id, item.hello.owner_id = said.gateway_id, said.owner_id
        item.hello.protocol_version, item.hello.nonce = version, said.gateway_nonce
        await self.send(peer.GatewayMessage(items=[item]).SerializeToString())
        welcome: peer.Welcome = (await self.read()).welcome
        return welcome

    async def prove(self, proof: bytes) -> None:
        """Shows a proof, and waits until it is accepted."""
        item = peer.GatewayItem(proof=peer.Proof(proof=proof))
        await self.send(peer.GatewayMessage(items=[item]).SerializeToString())
        assert (await self.read()).HasField("accepted")

    async def over(self) -> Refusal:
        """Waits for the end of the call."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.read()
        return refusal_of(raised.value)

    def cancel(self) -> None:
        self._call.cancel()


class Refusal(NamedTuple):
    code: grpc.StatusCode
    reason: str
    message: str


def refusal_of(error: Any) -> Refusal:
    reason = dict(error.trailing_metadata())["sharecoord-reason"]
    return Refusal(error.code(), reason, error.details())


class Door:
    """An owner, and everybody who comes to it."""

    def __init__(self, world: World, coordinator: Coordinator, address: str) -> None:
        assert coordinator.fleet is not None
        self.world, self.coordinator, self.address = world, coordinator, address
        self.fleet: Fleet = coordinator.fleet
        self.refused: asyncio.Queue[tuple[str, SharecoordError]] = asyncio.Queue()
        self.service = PeerService(
            coordinator,
            self.fleet,
            secret=OWNER_SECRET,
            refused=lambda *said: self.refused.put_nowait(said),
        )
        self._stack = contextlib.AsyncExitStack()

    async def call(self) -> Call:
        """A new call, on a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(self.address, options)
        return Call(await self._stack.enter_async_context(channel))

    async def linked(self, said: Greeting = GOOD, secret: bytes = GATEWAY_SECRET) -> Call:
        """A link with the proof that this secret makes."""
        call = await self.call()
        await call.prove(gateway_proof(await call.hello(said), said, secret))
        return call

    async def refusal(self, work: Any) -> Refusal:
        """The end of a call that is refused; `refused` has heard the same."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await work
        found = refusal_of(raised.value)
        address, error = await self.refused.get()
        assert address == ""  # A Unix socket has none.
        assert (error.reason, error.message) == (found.reason, found.message)
        return found

    def started(self, coordinator_id: str, secret: bytes) -> MemoryStore:
        """Another coordinator takes its lease row."""
        store = MemoryStore(self.world.database, fleet=True)
        store.open(
            coordinator_id=coordinator_id,
            cluster_id=self.world.log.cluster,
            address="test:1",
            version="test",
            secret=secret,
        )
        return store

    async def close(self) -> None:
        await self._stack.aclose()


def gateway_proof(
    welcome: peer.Welcome, said: Greeting = GOOD, secret: bytes = GATEWAY_SECRET
) -> bytes:
    return proof_of(Side.GATEWAY, secret, said._replace(owner_nonce=welcome.nonce))


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    """The owner `owner`, of whose fleet `gateway` is another coordinator."""
    world = world_with(0)
    coordinator = world.build("owner", fleet=True)
    made = Door(world, coordinator, f"unix:{tmp_path}/peer")
    made.started("gateway", GATEWAY_SECRET)
    await coordinator.start()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((made.service.handlers(),))
    server.add_insecure_port(made.address)
    await server.start()
    async with asyncio.timeout(DEADLINE_S):
        yield made
        await made.close()
        await server.stop(None)
        await coordinator.close()


async def test_a_gateway_of_the_fleet_gets_in(door: Door) -> None:
    call = await door.call()
    welcome = await call.hello()
    greeting = GOOD._replace(owner_nonce=welcome.nonce)
    assert proves(welcome.proof, Side.OWNER, OWNER_SECRET, greeting)
    assert not door.fleet.gateway_links
    await call.prove(gateway_proof(welcome))
    await eventually_async(lambda: door.fleet.gateway_links.keys() == {"gateway"})
    assert door.fleet.refused_links == 0
    assert door.refused.empty()


STRANGERS: dict[str, tuple[Greeting, Answer]] = {
    "another secret": (GOOD, lambda w: gateway_proof(w, secret=b"x" * SECRET_BYTES)),
    "the owner's secret": (GOOD, lambda w: gateway_proof(w, secret=OWNER_SECRET)),
    "no proof": (GOOD, lambda _: b""),
    "what the owner has said": (GOOD, lambda w: w.proof),
    "swapped ids": (
        GOOD,
        lambda w: gateway_proof(w, GOOD._replace(gateway_id="owner", owner_id="gateway")),
    ),
    "a gateway that nobody knows": (
        GOOD._replace(gateway_id="nobody"),
        lambda w: gateway_proof(w, GOOD._replace(gateway_id="nobody")),
    ),
    "a coordinator without a secret": (
        GOOD._replace(gateway_id="older"),
        lambda w: gateway_proof(w, GOOD._replace(gateway_id="older"), b""),
    ),
    "no nonce": (
        GOOD._replace(gateway_nonce=b""),
        lambda w: gateway_proof(w, GOOD._replace(gateway_nonce=b"")),
    ),
}


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_stranger_is_refused_and_told_of(door: Door, stranger: str) -> None:
    said, answer = STRANGERS[stranger]
    door.started("older", b"")
    call = await door.call()
    refusal = await door.refusal(call.prove(answer(await call.hello(said))))
    assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
    assert refusal.reason == "UNAUTHENTICATED"
    assert "has the secret" in refusal.message
    assert not door.fleet.gateway_links
    assert door.fleet.refused_links == 1


async def test_what_was_recorded_of_a_link_opens_no_other(door: Door) -> None:
    call = await door.call()
    welcome = await call.hello()
    recorded = gateway_proof(welcome)
    await call.prove(recorded)
    replayed = await door.call()
    # The same hello, with the same nonce: the owner's own is another.
    assert (await replayed.hello()).nonce != welcome.nonce
    assert (await door.refusal(replayed.prove(recorded))).reason == "UNAUTHENTICATED"
    # The true gateway's link is what it was.
    await eventually_async(lambda: door.fleet.gateway_links.keys() == {"gateway"})


async def test_two_links_with_the_same_hello_have_proofs_of_their_own(door: Door) -> None:
    one, other = await door.call(), await door.call()
    welcomes = [await one.hello(), await other.hello()]
    refusal = await door.refusal(other.prove(gateway_proof(welcomes[0])))
    assert refusal.reason == "UNAUTHENTICATED"
    await one.prove(gateway_proof(welcomes[0]))


async def test_a_hello_for_another_owner_is_refused(door: Door) -> None:
    call = await door.call()
    refusal = await door.refusal(call.hello(GOOD._replace(owner_id="for\nmer")))
    assert refusal.reason == "NOT_OWNER"
    assert refusal.message.startswith(r"this is coordinator owner, not 'for\nmer'")


async def test_another_protocol_is_refused_with_both_versions(
    door: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    call = await door.call()
    refusal = await door.refusal(call.hello(version=1))
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "speaks version 1 of the protocol between coordinators, this one 2" in refusal.message
    out = capsys.readouterr()
    assert "bring both to one release" in out.out + out.err


def items(*made: peer.GatewayItem) -> bytes:
    return peer.GatewayMessage(items=made).SerializeToString()


ALIVE = peer.GatewayItem(alive=peer.Alive())
LARGE = peer.GatewayItem(hello=peer.Hello(version="v" * GREETING_BYTES_MAX))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET / HTTP/1.1", id="no message"),
        pytest.param(items(ALIVE), id="another item"),
        pytest.param(items(peer.GatewayItem(hello=peer.Hello()), ALIVE), id="more than a hello"),
        pytest.param(items(peer.GatewayItem(proof=peer.Proof())), id="a proof first"),
        pytest.param(items(LARGE), id="too large"),
    ],
)
async def test_garbage_is_refused(door: Door, data: bytes) -> None:
    call = await door.call()

    async def talk() -> None:
        await call.send(data)
        await call.read()

    refusal = await door.refusal(talk())
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "INVALID_REQUEST"


async def test_what_comes_in_the_place_of_a_proof_is_refused(door: Door) -> None:
    call = await door.call()
    await call.hello()

    async def talk() -> None:
        await call.send(items(ALIVE))
        await call.read()

    assert (await door.refusal(talk())).reason == "INVALID_REQUEST"
    assert not door.fleet.gateway_links


@pytest.mark.parametrize("says_hello", [False, True])
async def test_who_is_silent_is_sent_away(
    door: Door, monkeypatch: pytest.MonkeyPatch, says_hello: bool
) -> None:
    monkeypatch.setattr(peer_service, "SILENCE_S", 0.05)
    call = await door.call()

    async def wait() -> None:
        if says_hello:
            await call.hello()
        await call.read()

    refusal = await door.refusal(wait())
    assert refusal.reason == "UNAUTHENTICATED"
    assert "no proof within" in refusal.message


async def test_silent_strangers_keep_no_gateway_out(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_service, "UNPROVEN_MAX", 2)
    oldest = await door.call()
    await oldest.hello()
    await (await door.call()).hello()
    await door.linked()
    refusal = await oldest.over()
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "LIMIT_EXCEEDED",
    )
    assert (await door.refused.get())[1].message == refusal.message
    # The other one has its time, and a proven link does not count.
    await door.linked()
    assert door.refused.empty()


async def test_who_hangs_up_before_its_proof_is_no_refusal(door: Door) -> None:
    call = await door.call()
    await call.hello()
    call.cancel()
    await door.linked()
    assert door.refused.empty()


async def test_a_coordinator_that_has_just_started_gets_in(door: Door) -> None:
    """The owner has not looked since: its view has another secret of that id, or none."""
    await door.linked()
    door.started("new", b"n" * SECRET_BYTES)
    await door.linked(GOOD._replace(gateway_id="new"), b"n" * SECRET_BYTES)
    door.started("gateway", b"G" * SECRET_BYTES)
    await door.linked(secret=b"G" * SECRET_BYTES)
    assert door.refused.empty()
    # A former process of that id, which wakes up now, does not get in any more.
    assert (await door.refusal(door.linked())).reason == "UNAUTHENTICATED"


async def test_without_the_store_nobody_knows_who_is_new(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    await door.linked()

    def away() -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(door.coordinator.context.store, "read_fleet", away)
    refusal = await door.refusal(door.linked(GOOD._replace(gateway_id="new")))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.UNAVAILABLE,
        "STORE_UNAVAILABLE",
    )
    # Whoever was known gets in all the same.
    await door.linked()


async def test_a_flood_of_refusals_is_one_line_of_the_log(
    door: Door, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        call = await door.call()
        await door.refusal(call.hello(version=1))
    assert door.fleet.refused_links == 20
    out = capsys.readouterr()
    said = (out.out + out.err).count("a link was refused")
    # One each second of a machine that may be busy.
    assert 1 <= said < 20


async def test_who_goes_down_takes_no_link(door: Door) -> None:
    await door.service.stop()
    call = await door.call()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.hello()
    assert refusal_of(raised.value).reason == "DRAINING"
    assert door.refused.empty()
