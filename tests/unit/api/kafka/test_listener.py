"""Connections of strangers to the Kafka port: how many, how long, over TLS, and with any bytes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from sharecoord.api.kafka.connections import strangers as module
from sharecoord.api.kafka.connections.connection import Connection
from sharecoord.api.kafka.connections.strangers import LINES_MAX, PERIOD_S, Strangers
from sharecoord.config.endpoints import TcpAddress
from sharecoord.config.process_settings import CertificateName, KafkaPortConfig, TlsConfig
from sharecoord.security.authenticator import Authenticator
from sharecoord.security.certificates import CertificateNames
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair, listener_pair
from tests.certificates import Authority, Live, Pair, pem_of
from tests.support import eventually_async
from tests.unit.api.kafka.client import Client, Port, fetched, port_of
from tests.unit.api.kafka.secured import Secured
from tests.unit.runtime.worlds import world_with

TIMEOUT_S = 10


class Time:
    """A clock by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def left(port: Port, connections: int) -> None:
    """Waits until so many connections are left."""

    async def so_many() -> bool:
        return port.kafka.strangers.connections == connections

    await eventually_async(so_many, TIMEOUT_S)


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        ({"max_connections": 3}, "kafka.port.max.connections,"),
        ({"max_connections_per_ip": 3}, "kafka.port.max.connections.per.ip"),
    ],
)
async def test_whoever_comes_beyond_the_limit_is_refused(
    limits: dict[str, Any], setting: str
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with port_of(world_with(6), config=KafkaPortConfig(**limits)) as port:
            member = await port.joined()
            others = [await port.connect() for _ in range(2)]
            await left(port, 3)
            for _ in range(50):
                assert await (await port.connect()).ended()
            assert fetched(await member.fetch(0))[0].acquired == [(0, 5, 1)]
            await others[0].close()
            await left(port, 2)
            again = await port.connect()
            assert (await again.heartbeat(0, "orders", member="again")).error_code.value == 0
            assert port.kafka.strangers.figures == (3, 50)
        refused = [line for line in lines if "one more is refused" in line["event"]]
        assert len(refused) == LINES_MAX
        assert setting in refused[0]["why"]


def test_the_log_has_few_lines_of_strangers_and_counts_the_others() -> None:
    time = Time()
    strangers = Strangers(1, 1, time)
    with structlog.testing.capture_logs() as lines:
        for _ in range(LINES_MAX + 7):
            strangers.tell("ended", address="a", why="b")
        time.now_s = PERIOD_S
        strangers.tell("ended", address="a", why="b")
        strangers.tell("ended", address="a", why="b")
    assert [line.get("left_out", 0) for line in lines] == [0] * LINES_MAX + [7, 0]


async def test_of_whom_nobody_knows_who_it_is_the_connection_ends_in_time(
    tmp_path: Path,
) -> None:
    secured = Secured(tmp_path, rules="")
    time, waits = Time(), {"authentication_timeout_ms": 5_000}
    async with secured.running(now_s=time, **waits):
        port = secured.port
        worker = await secured.joined("worker")
        silent, drips = await port.connect(), await port.connect()
        time.now_s = 4.9
        port.kafka.listener.look()
        drips.writer.write(b"\0")
        await left(port, 3)
        time.now_s = 5.0
        port.kafka.listener.look()
        for each in (silent, drips):
            assert await each.ended()
        await left(port, 1)
        assert (await worker.heartbeat(1)).error_code.value == 0


async def test_where_nobody_is_asked_a_connection_ends_when_it_is_idle() -> None:
    time = Time()
    config = KafkaPortConfig(connections_max_idle_ms=600_000)
    async with port_of(world_with(0), config=config, now_s=time) as port:
        member, idle = await port.joined(), await port.connect()
        await left(port, 2)
        time.now_s = 599
        assert (await member.heartbeat(1)).error_code.value == 0
        time.now_s = 600
        port.kafka.listener.look()
        assert await idle.ended()
        await left(port, 1)
        assert (await member.heartbeat(1)).error_code.value == 0


async def test_a_member_that_waits_for_records_is_not_idle() -> None:
    time = Time()
    config = KafkaPortConfig(connections_max_idle_ms=1_000)
    async with port_of(world_with(0), config=config, now_s=time) as port:
        member = await port.joined()
        waiting = asyncio.create_task(member.fetch(0, wait_ms=30_000))
        (connection,) = port.kafka.listener.connections

        async def is_waiting() -> bool:
            return connection.is_working

        await eventually_async(is_waiting, TIMEOUT_S)
        time.now_s = 30
        port.kafka.listener.look()
        port.world.log.append("orders", 3)
        assert fetched(await waiting)[0].acquired == [(0, 2, 1)]


async def test_a_client_that_does_not_read_its_answers_is_idle_in_the_end() -> None:
    time = Time()
    config = KafkaPortConfig(connections_max_idle_ms=1_000)
    async with port_of(world_with(0), config=config, now_s=time) as port:
        deaf = await port.connect()
        await left(port, 1)
        (connection,) = port.kafka.listener.connections
        connection.pause_writing()
        deaf.writer.write(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff")

        async def is_waiting() -> bool:
            return connection.is_working

        await eventually_async(is_waiting, TIMEOUT_S)
        time.now_s = 60
        port.kafka.listener.look()
        await left(port, 0)


# -- TLS ------------------------------------------------------------------------------------------


class Tls:
    """A port that speaks TLS, its files, and its clients."""

    def __init__(self, folder: Path, *, with_clients: bool) -> None:
        self.authority = Authority(folder)
        self.server = self.authority.issue("server")
        self.live = Live(folder / "live", self.server, self.authority.certificate)
        self.pair = self._pair(with_clients=with_clients)
        self.port: Port

    def _pair(self, *, with_clients: bool) -> WatchedFiles[KeyPair]:
        config = TlsConfig(
            cert_file=str(self.live.certificate),
            key_file=str(self.live.key),
            client_ca_file=str(self.live.authorities) if with_clients else "",
        )
        pair = listener_pair(config, has_context=True)
        assert pair is not None
        return pair

    @contextlib.asynccontextmanager
    async def running(self, **limits: Any) -> AsyncIterator[Tls]:
        names = CertificateNames([CertificateName.URI, CertificateName.DNS])
        options: dict[str, Any] = {"pair": self.pair, "config": KafkaPortConfig(**limits)}
        if self.pair.value.client_authorities:
            options["authenticator"] = Authenticator(certificates=names, must_prove=True)
        async with port_of(world_with(6), **options) as self.port:
            yield self

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    async def connect(self, pair: Pair | None = None) -> Client:
        return await self.port.connect(self.client(pair))


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path, with_clients=False)


async def test_members_speak_tls(tls: Tls) -> None:
    async with tls.running():
        member = await tls.port.joined(client=await tls.connect())
        assert fetched(await member.fetch(0))[0].acquired == [(0, 5, 1)]
        await left(tls.port, 1)
        await member.close()
        await left(tls.port, 0)


class RawTls:
    """A TLS client that says by itself what goes out together."""

    def __init__(self, tls: Tls) -> None:
        self._received, self._sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = tls.client()
        self._client = context.wrap_bio(self._received, self._sent, server_hostname="localhost")
        self._port = tls.port.address.port

    async def connect(self) -> None:
        """All of the handshake, but for its last message."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        while True:
            try:
                self._client.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._writer.write(self._sent.read())
                self._received.write(await self._reader.read(1 << 16))

    async def ask(self, *pieces: bytes) -> bytes:
        """The answer to what goes out in so many TLS records, and in one piece."""
        for piece in pieces:
            self._client.write(piece)
        self._writer.write(self._sent.read())
        while received := await self._reader.read(1 << 16):
            self._received.write(received)
            with contextlib.suppress(ssl.SSLWantReadError):
                return self._client.read()
        raise ConnectionError("the coordinator has ended the connection")

    def close(self) -> None:
        self._writer.close()


ANY_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff"


async def test_a_request_right_behind_the_handshake_is_read(tls: Tls) -> None:
    """It comes in one piece with the handshake's end, before it is known who serves it."""
    async with tls.running():
        client = RawTls(tls)
        await client.connect()
        assert (await client.ask(ANY_VERSIONS))[4:10] == b"\0\0\0\x07\0\0"
        client.close()


async def test_a_request_in_several_tls_records_that_come_together_is_read(tls: Tls) -> None:
    """As librdkafka sends it: its head and its body by themselves."""
    async with tls.running():
        client = RawTls(tls)
        await client.connect()
        await client.ask(ANY_VERSIONS)
        for cut in range(1, len(ANY_VERSIONS)):
            answer = await client.ask(ANY_VERSIONS[:cut], ANY_VERSIONS[cut:])
            assert answer[4:10] == b"\0\0\0\x07\0\0", cut
        client.close()


async def test_a_client_is_whom_its_certificate_names(tmp_path: Path) -> None:
    tls = Tls(tmp_path, with_clients=True)
    orders = tls.authority.issue("orders", hosts=("URI:spiffe://shop/orders", "DNS:orders"))
    async with tls.running():
        await tls.port.joined(client=await tls.connect(orders))
        (session,) = tls.port.coordinator.groups["g"].sessions.values()
        assert session.principal == "User:spiffe://shop/orders"


async def test_who_shows_no_certificate_of_the_authority_is_refused(tmp_path: Path) -> None:
    tls = Tls(tmp_path, with_clients=True)
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").issue("orders", hosts=("URI:spiffe://shop/orders",))
    with structlog.testing.capture_logs() as lines:
        async with tls.running():
            for pair in (None, foreign):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    # With TLS 1.3 the client learns it from its first read.
                    await (await tls.connect(pair)).raw(b"\0\x12\0\0\0\0\0\x07\xff\xff")
            await left(tls.port, 0)
    whys = [line["why"] for line in lines if line["event"] == "Kafka port: no TLS with a client"]
    assert "the client shows no certificate" in whys[0]
    assert whys[1] == "CERTIFICATE_VERIFY_FAILED"


def shown_by(client: Client) -> str:
    der = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return ssl.DER_cert_to_PEM_cert(der)


async def test_a_new_certificate_is_shown_to_new_connections_alone(tls: Tls) -> None:
    async with tls.running():
        former = await tls.port.joined(client=await tls.connect())
        newer = tls.authority.issue("newer")
        waiting = asyncio.create_task(former.fetch(0))
        tls.live.put(newer)
        assert tls.pair.look()
        client = await tls.connect()
        assert shown_by(client) == pem_of(newer)
        assert fetched(await waiting)[0].acquired == [(0, 5, 1)]
        assert (await former.acknowledge(1, {0: [(0, 5, 1)]})).error_code.value == 0


async def test_a_broken_certificate_leaves_the_former_in_force(tls: Tls) -> None:
    async with tls.running():
        tls.live.certificate.write_text("-----BEGIN NOTHING-----")
        assert not tls.pair.look()
        assert "no certificate can be read" in tls.pair.problem
        assert shown_by(await tls.connect()) == pem_of(tls.server)
        tls.live.put(tls.server)
        tls.pair.look()
        assert not tls.pair.problem


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "the client speaks HTTP without TLS"),
        (b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff", "the client speaks no TLS"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "without an end"),
    ],
)
async def test_who_speaks_no_tls_is_told_of_in_the_log(tls: Tls, sent: bytes, said: str) -> None:
    with structlog.testing.capture_logs() as lines:
        async with tls.running():
            stranger = await tls.port.connect()
            stranger.writer.write(sent)
            if said == "without an end":
                await stranger.close()
            await left(tls.port, 0)
    (line,) = [each for each in lines if each["event"] == "Kafka port: no TLS with a client"]
    assert said in line["why"] or said == "without an end"
    assert line["address"] == "127.0.0.1"
    assert not [each for each in lines if each["log_level"] == "error"]


async def test_a_handshake_that_never_ends_is_ended(tls: Tls) -> None:
    """By the loop's own clock: 0.1 s."""
    async with tls.running(authentication_timeout_ms=100):
        silent = await tls.port.connect()
        assert await silent.ended()
        await left(tls.port, 0)


async def test_silent_handshakes_count(tls: Tls) -> None:
    async with tls.running(max_connections=5):
        silent = [await tls.port.connect() for _ in range(5)]
        await left(tls.port, 5)
        assert await (await tls.port.connect()).ended()
        for each in silent:
            await each.close()
        await left(tls.port, 0)
        assert (await tls.port.joined(client=await tls.connect())).topic_id is not None


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "speaks HTTP: health and metrics are at management.port"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls.cert.file is not set"),
        (b"\x7f\0\0\0", "a request of 2130706432 bytes"),
    ],
)
async def test_who_speaks_something_else_is_told_of_in_the_log(sent: bytes, said: str) -> None:
    with structlog.testing.capture_logs() as lines:
        async with port_of(world_with(0)) as port:
            stranger = await port.connect()
            stranger.writer.write(sent)
            assert await stranger.ended()
    assert [said in line["why"] for line in lines if "why" in line] == [True]


# -- any bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_any_bytes_of_strangers_harm_nobody(
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Random frames, whole and cut, of everybody who has proven nothing."""
    monkeypatch.setattr(module, "LINES_MAX", 0)
    secured, chance = Secured(tmp_path, rules=""), random.Random(seed)
    with structlog.testing.capture_logs() as lines:
        async with secured.running():
            worker = await secured.joined("worker")
            for _ in range(150):
                stranger = await secured.port.connect()
                stranger.writer.write(_any(chance))
                stranger.writer.write_eof()
                assert await _answers_end(stranger)
                await stranger.close()
            await left(secured.port, 1)
            assert fetched(await worker.fetch(0))[0].acquired == [(0, 5, 1)]
    assert not [each for each in lines if each["log_level"] == "error"]
    assert not caplog.records


async def _answers_end(stranger: Client) -> bool:
    """Reads what may come until the end."""
    while not await stranger.ended():
        pass
    return True


def _any(chance: random.Random) -> bytes:
    """A frame of any content, with a head that is often one of those that strangers may send."""
    key = chance.choice([17, 18, 36, 3, 76, 78, chance.randrange(1 << 16)])
    version = chance.randrange(5)
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + chance.randbytes(4)
    body = head + chance.randbytes(chance.randrange(200))
    size = chance.choice([len(body), len(body), chance.randrange(1 << 32)])
    return size.to_bytes(4, "big") + body[: chance.choice([len(body), chance.randrange(8)])]


@pytest.mark.parametrize("seed", range(2))
async def test_any_bytes_to_a_port_with_tls_harm_nobody(
    tls: Tls, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    hello = _client_hello(tls)
    with structlog.testing.capture_logs() as lines:
        async with tls.running():
            member = await tls.port.joined(client=await tls.connect())
            for _ in range(60):
                stranger = await tls.port.connect()
                sent = bytearray(chance.choice([hello, chance.randbytes(300)]))
                for _ in range(chance.randrange(4)):
                    sent[chance.randrange(len(sent))] = chance.randrange(256)
                stranger.writer.write(bytes(sent[: chance.randrange(1, len(sent) + 1)]))
                stranger.writer.write_eof()
                assert await _answers_end(stranger)
            await left(tls.port, 1)
            assert fetched(await member.fetch(0))[0].acquired == [(0, 5, 1)]
    assert not [each for each in lines if each["log_level"] == "error"]
    assert not caplog.records


def _client_hello(tls: Tls) -> bytes:
    """The first message of a TLS client."""
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.client().wrap_bio(received, sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


async def test_a_connection_that_is_reset_at_once_is_forgotten() -> None:
    async with port_of(world_with(0)) as port:
        for _ in range(20):
            with socket.create_connection((port.address.host, port.address.port)) as plain:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert (await port.joined()).topic_id is not None
        await left(port, 1)
        assert all(isinstance(each, Connection) for each in port.kafka.listener.connections)


async def test_each_listener_names_the_address_by_which_its_clients_came() -> None:
    async with port_of(world_with(1)) as port:
        told = TcpAddress("sidecar.example", 19092)
        second = await port.kafka.start(TcpAddress("127.0.0.1", 0), told)
        for at, expected in ((port.address, port.address), (second, told)):
            client = Client(*await asyncio.open_connection(at.host, at.port))
            found = await client.ask(10, 6, key_type=0, coordinator_keys=("g",))
            (coordinator,) = found.coordinators
            assert (coordinator.host, coordinator.port) == (expected.host, expected.port)
            asked = {"include_cluster_authorized_operations": False}
            found = await client.ask(60, 2, **asked, include_fenced_brokers=False)
            (broker,) = found.brokers
            assert (broker.host, broker.port) == (expected.host, expected.port)
            await client.close()
