"""The verdict of the fault tests sees what it is there for: each broken promise is found."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharecoord.demo.ledger import Entry, Outcome, Verb
from tests.acceptance.chaos.kafka_crew import cut
from tests.acceptance.chaos.proxy import TcpProxy
from tests.acceptance.chaos.records import LEAVING, LockEntry, LockWriter, read_locks
from tests.acceptance.chaos.verdict import weigh
from tests.support import eventually

LOCK_S = 3.0


def life(
    offset: int, *deliveries: tuple[float, str, Outcome]
) -> tuple[list[Entry], list[LockEntry]]:
    """What ledgers say of one record: each delivery is worked off and confirmed 0.1 s later."""
    entries: list[Entry] = []
    locks: list[LockEntry] = []
    for count, (time_s, member, outcome) in enumerate(deliveries, 1):
        locks.append(LockEntry(time_s, member, offset, count, time_s + LOCK_S))
        entries.append(Entry(time_s, Verb.GOT, member, offset, count, Outcome.NONE))
        if outcome is not Outcome.NONE:
            entries.append(Entry(time_s + 0.1, Verb.DID, member, offset, count, outcome))
            entries.append(Entry(time_s + 0.2, Verb.CONFIRMED, member, offset, count, outcome))
    return entries, locks


ACCEPT, RELEASE, NONE = Outcome.ACCEPT, Outcome.RELEASE, Outcome.NONE


def faults(*deliveries: tuple[float, str, Outcome], leaving: float | None = None) -> str:
    entries, locks = life(0, *deliveries)
    if leaving is not None:
        locks.append(LockEntry(leaving, deliveries[0][1], LEAVING, 0, 0.0))
    return "\n".join(weigh({0}, entries, locks, margin_s=0.5).faults)


@pytest.mark.parametrize(
    "deliveries",
    [
        [(0.0, "a", ACCEPT)],
        [(0.0, "a", RELEASE), (0.2, "b", ACCEPT)],
        [(0.0, "a", NONE), (2.9, "b", ACCEPT)],
        [(0.0, "a", NONE), (2.6, "a", ACCEPT)],
    ],
)
def test_a_good_life_has_no_fault(deliveries: list[tuple[float, str, Outcome]]) -> None:
    assert faults(*deliveries) == ""


def test_who_leaves_gives_its_locks_up() -> None:
    assert faults((0.0, "a", NONE), (1.0, "b", ACCEPT), leaving=0.9) == ""
    assert "while a had it for 2.00 s more" in faults((0.0, "a", NONE), (1.0, "b", ACCEPT))


def test_two_valid_locks_are_found() -> None:
    found = faults((0.0, "a", NONE), (2.0, "b", ACCEPT))
    assert "offset 0 went to b while a had it for 1.00 s more" in found


def test_a_record_that_came_back_after_its_end_is_found() -> None:
    assert "delivered again after" in faults((0.0, "a", ACCEPT), (9.0, "b", ACCEPT))


def test_a_count_that_was_reset_is_found() -> None:
    entries, locks = life(0, (0.0, "a", RELEASE), (1.0, "b", ACCEPT))
    locks[1] = locks[1]._replace(delivery_count=1)
    assert "offset 0: delivery count 1 after 1" in weigh({0}, entries, locks).faults


def test_a_lost_record_is_found() -> None:
    entries, locks = life(0, (0.0, "a", ACCEPT))
    (lost,) = weigh({0, 1}, entries, locks).faults
    assert lost == "1 records were lost: [1]"


def test_lag_at_the_end_is_found() -> None:
    entries, locks = life(0, (0.0, "a", ACCEPT))
    assert weigh({0}, entries, locks, unfinished=2).faults


def test_lock_files_hold_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    assert read_locks(path) == []
    writer = LockWriter(path, "w1")
    writer.write([(7, 2, 12.5), (8, 1, 12.5)])
    writer.leaving()
    with path.open("a") as file:
        file.write("half a li")
    *deliveries, last = read_locks(path)
    assert [each[1:] for each in deliveries] == [("w1", 7, 2, 12.5), ("w1", 8, 1, 12.5)]
    assert last.offset == LEAVING


@pytest.mark.parametrize(
    ("came_s", "ends_s"),
    [
        pytest.param(9.0, 10.0, id="before-the-kill"),
        pytest.param(10.5, 10.0, id="out-of-the-clients-buffer"),
        pytest.param(12.5, 15.5, id="from-the-next-coordinator"),
    ],
)
def test_the_lock_of_a_share_consumer_ends_with_its_coordinator(
    came_s: float, ends_s: float
) -> None:
    entry = LockEntry(came_s, "a", 7, 1, came_s + LOCK_S)
    assert cut(entry, [(1.0, 2.0), (10.0, 12.0)]).deadline_s == ends_s


# -- the proxy ------------------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve_echo, args=(server,))
        thread.start()
        host, port = server.getsockname()
        yield f"{host}:{port}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def serve_echo(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            try:
                while data := connection.recv(4096):
                    connection.sendall(data)
            except OSError:
                continue


def connect(proxy: TcpProxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10.0)


def ask(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return connection.recv(4096)


def hangs_up(connection: socket.socket) -> bool:
    """Whether the other side ends the connection instead of answering."""
    try:
        return ask(connection, b"anybody?") == b""
    except ConnectionError:
        return True


def test_the_proxy_forwards_cuts_and_heals(echo: str) -> None:
    with TcpProxy(echo) as proxy:
        with connect(proxy) as first:
            assert ask(first, b"hello") == b"hello"
            proxy.cut()
            assert hangs_up(first)
        with connect(proxy) as second:
            assert hangs_up(second)
        proxy.heal()
        with connect(proxy) as third:
            assert ask(third, b"back") == b"back"


def test_what_the_proxy_holds_up_goes_through_afterwards(echo: str) -> None:
    with TcpProxy(echo) as proxy, connect(proxy) as connection:
        assert ask(connection, b"one") == b"one"
        proxy.stall()
        connection.sendall(b"two")
        eventually(lambda: proxy.held_up == 1, 10, "the chunk waits in the proxy")
        proxy.heal()
        assert connection.recv(4096) == b"two"


def test_kafka_is_told_to_be_where_the_proxy_is(echo: str) -> None:
    with TcpProxy(echo, kafka=True) as proxy, connect(proxy) as connection:
        old, new = (
            host.encode() + struct.pack(">i", int(port))
            for host, _, port in (echo.rpartition(":"), proxy.address.rpartition(":"))
        )
        head = struct.pack(">i", len(old) + 2)
        connection.sendall(head + b"<" + old + b">")
        assert connection.recv(4096) == head + b"<" + new + b">"
