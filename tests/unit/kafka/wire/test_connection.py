"""A connection: framing, limits, time, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.errors import KafkaUnavailableError
from sharecoord.kafka.wire import connection as module
from sharecoord.kafka.wire.connection import Connection, ConnectionOptions, Endpoint
from tests.unit.kafka.wire.fake_broker import (
    CLOSE,
    SILENCE,
    FakeBroker,
    Request,
    framed,
    hours,
)

METADATA = 3
HEAD = METADATA.to_bytes(2, "big") + (1).to_bytes(2, "big")
BODY = b"\0\4name\xff\xff\xff\xff"
"""Client id, and all topics."""


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as found:
        yield found


async def opened(broker: FakeBroker, **options: object) -> Connection:
    connection = await Connection.open(broker.endpoint, ConnectionOptions(**options), tls=None)  # type: ignore[arg-type]
    connection.trust()
    return connection


def ask(connection: Connection, timeout_s: float = 30.0) -> asyncio.Future[memoryview]:
    return connection.send(HEAD, BODY, timeout_s=timeout_s)


async def test_answers_come_to_their_requests_in_order(broker: FakeBroker) -> None:
    broker.on(METADATA, lambda request: b"answer %d" % request.correlation_id)
    connection = await opened(broker)
    answers = await asyncio.gather(*(ask(connection) for _ in range(5)))
    assert [bytes(each) for each in answers] == [b"answer %d" % n for n in range(1, 6)]
    assert [each.client_id for each in broker.requests] == ["name"] * 5
    assert all(each.readonly for each in answers)
    connection.close()


@pytest.mark.parametrize("size", [0, 1, (64 << 10) - 8, (64 << 10) - 7, 64 << 10, 3 << 20])
async def test_an_answer_of_any_size_is_whole(broker: FakeBroker, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    broker.on(METADATA, lambda request: content[:size])
    connection = await opened(broker)
    first, second = await asyncio.gather(ask(connection), ask(connection))
    assert bytes(first) == bytes(second) == content[:size]
    connection.close()


async def test_an_answer_may_come_byte_by_byte(broker: FakeBroker) -> None:
    connection = await opened(broker)
    answer = ask(connection)
    data = framed(1, b"abc")
    for at in range(len(data)):
        connection.get_buffer(-1)[:1] = data[at : at + 1]
        connection.buffer_updated(1)
    assert bytes(await answer) == b"abc"
    connection.close()


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "cut"])
async def test_the_last_bytes_of_a_large_answer_do_not_wait_for_more(is_whole: bool) -> None:
    """The kernel wakes the loop for large pieces; the rest of an answer, or its end, is less."""
    content = bytes(module.RECEIVE_AT_ONCE_BYTES * 2 + 5)
    begun, seen, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(framed(1, content)[:-3])
        await writer.drain()
        begun.set()
        await seen.wait()
        if is_whole:
            writer.write(content[-3:])
            await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        endpoint = Endpoint(*server.sockets[0].getsockname())
        connection = await Connection.open(endpoint, ConnectionOptions(), tls=None)
        connection.trust()
        answer = ask(connection)
        await begun.wait()
        assert not answer.done()
        seen.set()
        if is_whole:
            assert bytes(await answer) == content
        else:
            with pytest.raises(KafkaUnavailableError, match="has closed the connection"):
                await answer
        connection.close()
        await over.wait()


async def test_memory_of_an_answer_is_never_used_again(broker: FakeBroker) -> None:
    broker.on(METADATA, lambda request: b"%08d" % request.correlation_id * 20_000)
    connection = await opened(broker)
    first = await ask(connection)
    before = bytes(first)
    await ask(connection)
    assert bytes(first) == before
    connection.close()


async def test_no_memory_is_made_for_an_answer_that_is_too_large(broker: FakeBroker) -> None:
    def answer(request: Request) -> object:
        request.link.write((99_000_000).to_bytes(4, "big") + b"\0\0\0\1")
        return SILENCE

    broker.on(METADATA, answer)
    connection = await opened(broker, answer_bytes_max=50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(KafkaUnavailableError, match=r"99000000 bytes.*50000000.*receive\.mess"):
            await ask(connection)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert not connection.is_open


async def test_before_it_is_trusted_a_broker_may_send_little(broker: FakeBroker) -> None:
    broker.on(METADATA, lambda request: bytes(2 << 20))
    connection = await Connection.open(broker.endpoint, ConnectionOptions(), tls=None)
    with pytest.raises(KafkaUnavailableError, match=f"4 to {1 << 20} are taken"):
        await ask(connection)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x50\x00", "speaks TLS: set kafka.security.protocol=ssl"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is a web server"),
        (b"\xff\xff\xff\xff\0\0\0\1", "answer of -1 bytes"),
        (b"\0\0\0\3\0\0\0\1", "answer of 3 bytes"),
        (framed(7, b"x"), "request 7, which is not due"),
    ],
)
async def test_what_is_no_answer_ends_the_connection(
    broker: FakeBroker, sent: bytes, said: str
) -> None:
    def answer(request: Request) -> object:
        request.link.write(sent)
        return SILENCE

    broker.on(METADATA, answer)
    connection = await opened(broker)
    with pytest.raises(KafkaUnavailableError, match=said):
        await ask(connection)
    with pytest.raises(KafkaUnavailableError, match=said):
        await ask(connection)


async def test_an_answer_that_nobody_asked_for_ends_the_connection(broker: FakeBroker) -> None:
    connection = await opened(broker)
    data = framed(1, b"x")
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    assert "which is not due" in str(connection.ended)


async def test_a_late_answer_ends_the_connection(broker: FakeBroker) -> None:
    broker.on(METADATA, lambda request: SILENCE)
    connection = await opened(broker)
    with hours() as clock:
        early, late = ask(connection, 5.0), ask(connection, 60.0)
        await broker.seen(METADATA)
        clock.forward(4.9)
        await asyncio.sleep(0)
        assert connection.is_open
        clock.forward(0.2)
        for each in (early, late):
            with pytest.raises(
                KafkaUnavailableError, match=r"127\.0\.0\.1:\d+ did not answer a request within 5 s"
            ):
                await each


async def test_a_short_wait_behind_a_long_one_is_kept(broker: FakeBroker) -> None:
    broker.on(METADATA, lambda request: SILENCE)
    connection = await opened(broker)
    with hours() as clock:
        answers = ask(connection, 60.0), ask(connection, 1.0)
        clock.forward(1.1)
        for each in answers:
            with pytest.raises(KafkaUnavailableError, match="within 1 s"):
                await each


async def test_a_caller_that_goes_leaves_the_connection_as_it_is(broker: FakeBroker) -> None:
    go = asyncio.Event()

    async def answer(request: Request) -> bytes:
        await go.wait()
        return b"%d" % request.correlation_id

    broker.on(METADATA, answer)
    connection = await opened(broker)
    left, kept = ask(connection), ask(connection)
    await broker.seen(METADATA)
    left.cancel()
    go.set()
    assert bytes(await kept) == b"2"
    connection.close()


async def test_a_lost_connection_fails_all_that_waits_with_one_error(broker: FakeBroker) -> None:
    held = asyncio.Event()

    async def answer(request: Request) -> object:
        if request.correlation_id == 1:
            return b"first"
        await held.wait()
        return CLOSE

    broker.on(METADATA, answer)
    connection = await opened(broker)
    await ask(connection)
    answers = [ask(connection) for _ in range(3)]
    held.set()
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert found[0] is found[1] is found[2]
    assert str(found[0]) == f"{broker.endpoint} has closed the connection"
    assert isinstance(found[0], KafkaUnavailableError)


async def test_a_peer_that_goes_before_any_answer_may_want_tls(broker: FakeBroker) -> None:
    broker.on(METADATA, lambda request: CLOSE)
    connection = await opened(broker)
    with pytest.raises(KafkaUnavailableError, match=r"if the port wants TLS.*protocol=ssl"):
        await ask(connection)


async def test_an_idle_connection_is_closed(broker: FakeBroker) -> None:
    broker.on(METADATA, lambda request: b"x")
    with hours() as clock:
        connection = await opened(broker, idle_s=100.0)
        clock.forward(60.0)
        await ask(connection)
        clock.forward(60.0)
        await ask(connection)
        clock.forward(110.0)
        await asyncio.sleep(0.001)
        assert "was idle" in str(connection.ended)


async def test_who_sends_much_waits_for_the_peer(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUESTS_MAX", 2)
    go = asyncio.Event()

    async def answer(request: Request) -> bytes:
        await go.wait()
        return b"x"

    broker.on(METADATA, answer)
    connection = await opened(broker)
    answers = [ask(connection), ask(connection)]
    assert not connection.writable
    waits = asyncio.ensure_future(connection.until_writable())
    await broker.seen(METADATA)
    assert not waits.done()
    go.set()
    await waits
    assert connection.writable
    await asyncio.gather(*answers)
    connection.pause_writing()
    waits = asyncio.ensure_future(connection.until_writable())
    await asyncio.sleep(0)
    assert not waits.done()
    connection.resume_writing()
    await waits
    connection.pause_writing()
    waits = asyncio.ensure_future(connection.until_writable())
    await asyncio.sleep(0)
    connection.close()
    await waits


async def test_nobody_listens(broker: FakeBroker) -> None:
    endpoint = broker.endpoint
    await broker.stop()
    with pytest.raises(KafkaUnavailableError, match=f"can not connect to {endpoint}"):
        await Connection.open(endpoint, ConnectionOptions(), tls=None)
    await broker.start()


async def test_a_host_that_is_no_name() -> None:
    with pytest.raises(KafkaUnavailableError, match="no name of a host"):
        await Connection.open(Endpoint("a" * 70 + ".b", 1), ConnectionOptions(), tls=None)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=20), st.booleans())
def test_whatever_comes_it_answers_or_ends(pieces: list[bytes], likely: bool) -> None:
    async def fed() -> None:
        connection = Connection(Endpoint("x", 1), ConnectionOptions(idle_s=0.0))
        connection.connection_made(mock.create_autospec(asyncio.Transport, instance=True))
        answers = [ask(connection) for _ in range(3)]
        for number, piece in enumerate(pieces, start=1):
            data = framed(number, piece) if likely else piece
            while data and connection.is_open:
                room = connection.get_buffer(-1)
                taken = min(len(room), len(data), 7)
                room[:taken] = data[:taken]
                connection.buffer_updated(taken)
                data = data[taken:]
        connection.close()
        found = await asyncio.gather(*answers, return_exceptions=True)
        for answer, piece in zip(found, pieces, strict=False):
            if likely:
                assert bytes(answer) == piece  # type: ignore[arg-type]

    asyncio.run(fed())


def test_an_endpoint_is_written_as_people_write_it() -> None:
    assert str(Endpoint("::1", 9092)) == "[::1]:9092"
    assert str(Endpoint("kafka", 9092)) == "kafka:9092"


async def test_a_closed_port_is_told_in_the_systems_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(KafkaUnavailableError, match="Connection refused"):
            await Connection.open(Endpoint(host, port), ConnectionOptions(), tls=None)
    with pytest.raises(KafkaUnavailableError, match=r"can not connect to nowhere\.invalid"):
        await Connection.open(Endpoint("nowhere.invalid", port), ConnectionOptions(), tls=None)


async def test_memory_of_a_large_answer_counts_until_it_is_taken_in(broker: FakeBroker) -> None:
    connection = await opened(broker)
    connection.send(b"\0\x12\0\0", b"", timeout_s=10)
    size = 1 << 20
    head = (size + 4).to_bytes(4, "big") + (1).to_bytes(4, "big")
    connection.get_buffer(-1)[: len(head)] = head
    assert connection.receiving_bytes == 0
    connection.buffer_updated(len(head))
    assert connection.receiving_bytes == size
    room = connection.get_buffer(-1)
    connection.buffer_updated(len(room))
    assert connection.receiving_bytes == size, "nobody has taken it in yet"
    connection.taken()
    assert connection.receiving_bytes == 0
    connection.close()
