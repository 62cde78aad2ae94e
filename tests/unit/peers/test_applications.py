"""Coordinator processes of one fleet, put together as `serve` does, on one store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sharecoord.app import Application, peer_address
from sharecoord.cli.coordinator.processes import config_of
from sharecoord.config.endpoints import AuditSink, AuditSinkKind, TcpAddress, UnixAddress
from sharecoord.config.process import ProcessConfig, load
from sharecoord.config.process_settings import (
    CoordinatorConfig,
    ListenConfig,
    ManagementConfig,
    Mode,
    SecurityConfig,
)
from sharecoord.core.fleet.belonging import SECRET_BYTES
from sharecoord.devenv.processes import LOOPBACK
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.fake_log import FakeLog

DEADLINE_S = 30


@contextlib.asynccontextmanager
async def serving(
    database: MemoryDatabase,
    name: str,
    mode: Mode = Mode.FLEET,
    audit: AuditSink = AuditSink(),  # noqa: B008 - it can not change
) -> AsyncIterator[Application]:
    config = ProcessConfig(
        listen=ListenConfig(address=TcpAddress(LOOPBACK, 0)),
        coordinator=CoordinatorConfig(mode=mode, id=name),
        management=ManagementConfig(enable=False),
        security=SecurityConfig(audit_sink=audit),
    )
    log = FakeLog()
    store = MemoryStore(database, fleet=mode is Mode.FLEET)
    application = Application(config, store=store, reader=log, catalog=log)
    await application.start()
    try:
        yield application
    finally:
        await application.stop()


def fleet_of(application: Application) -> Fleet:
    assert application.coordinator is not None
    assert application.coordinator.fleet is not None
    return application.coordinator.fleet


async def until_linked(application: Application, *gateways: str) -> None:
    """Waits for links of exactly these gateways; each look and each link gives the loop a turn."""
    async with asyncio.timeout(DEADLINE_S):
        while fleet_of(application).gateway_links.keys() != set(gateways):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_coordinators_of_one_store_let_each_other_in() -> None:
    database = MemoryDatabase()
    async with serving(database, "a") as a, serving(database, "b") as b:
        await until_linked(a, "b")
        await until_linked(b, "a")
        rows = database.coordinators
        for application, name in ((a, "a"), (b, "b")):
            assert rows[name].address == application.address
            assert rows[name].peer_address.startswith(f"{LOOPBACK}:")
            assert rows[name].peer_address != application.address
            assert fleet_of(application).refused_links == 0
        secrets = {rows[name].secret for name in "ab"}
        assert {len(secret) for secret in secrets} == {SECRET_BYTES}
        assert len(secrets) == 2
        # A restart under the same id has a new secret, and is let in again.
        former = rows["b"].secret
        await b.stop()
        await until_linked(a)
        async with serving(database, "b") as again:
            await until_linked(a, "b")
            await until_linked(again, "a")
        assert database.coordinators["b"].secret != former
        assert fleet_of(a).refused_links == 0


async def test_a_coordinator_of_another_store_is_a_stranger(tmp_path: Path) -> None:
    """Though it is told a's address, and even knows a's secret; the audit trail tells of it."""
    database, elsewhere = MemoryDatabase(), MemoryDatabase()
    audit = AuditSink(AuditSinkKind.FILE, str(tmp_path / "audit"))
    async with serving(database, "a", audit=audit) as a, serving(elsewhere, "b") as b:
        stray = MemoryStore(elsewhere, fleet=True)
        about: dict[str, Any] = {"cluster_id": "", "address": "test:1", "version": "test"}
        row = database.coordinators["a"]
        stray.open(coordinator_id="a", secret=row.secret, **about)
        stray.renew_lease(duration_ms=10 * DEADLINE_S * 1_000)
        stray.announce(address="test:1", peer_address=row.peer_address)
        async with asyncio.timeout(DEADLINE_S):
            while not fleet_of(a).refused_links:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert fleet_of(a).gateway_links == {}
        assert fleet_of(b).gateway_links == {}
    line = json.loads((tmp_path / "audit").read_text().splitlines()[0])
    assert (line["call"], line["outcome"], line["principal"]) == (
        "Link",
        "refused",
        "User:anonymous",
    )
    assert line["reason"] == "UNAUTHENTICATED"
    assert line["address"].startswith(f"{LOOPBACK}:")
    assert "this is not coordinator 'b' of this fleet" in line["why"]


async def test_the_port_of_workers_serves_no_coordinator() -> None:
    async with serving(MemoryDatabase(), "a") as a, grpc.aio.insecure_channel(a.address) as made:
        channel: Any = made
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/sharecoord.peer.v1.PeerService/Link")(b"")
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_coordinator_alone_has_neither_door_nor_secret() -> None:
    database = MemoryDatabase()
    async with serving(database, "a", Mode.STANDALONE):
        (row,) = database.coordinators.values()
        assert (row.peer_address, row.secret) == ("", b"")


ANY, HERE, PEERS = TcpAddress("0.0.0.0", 7072), TcpAddress("10.0.0.1", 7072), TcpAddress("p", 1)
POD, LOAD_BALANCER = TcpAddress("10.9.9.9", 7070), TcpAddress("queue.example", 443)


@pytest.mark.parametrize(
    ("bound", "settings", "address"),
    [
        (HERE, {}, "10.0.0.1:7072"),
        # Members come by another way; this host is reached where it listens.
        (HERE, {"advertised_address": LOAD_BALANCER}, "10.0.0.1:7072"),
        (ANY, {"advertised_address": POD}, "10.9.9.9:7072"),
        (
            TcpAddress("::", 7072),
            {"advertised_address": TcpAddress("fd00::7", 1)},
            "[fd00::7]:7072",
        ),
        (ANY, {"advertised_address": POD, "peer_address": PEERS}, "p:1"),
        (HERE, {"peer_address": PEERS}, "p:1"),
        (TcpAddress("localhost", 7), {"advertised_address": UnixAddress("/s")}, "localhost:7"),
    ],
)
def test_where_the_others_are_sent(
    bound: TcpAddress, settings: dict[str, Any], address: str
) -> None:
    assert str(peer_address(CoordinatorConfig(**settings), bound)) == address


def test_each_of_several_processes_has_a_door_of_its_own() -> None:
    config = ProcessConfig(coordinator=CoordinatorConfig(peer_port=7072, peer_address=PEERS))
    found = [config_of(config, HERE, index).coordinator for index in (0, 2)]
    assert [each.peer_port for each in found] == [7072, 7074]
    assert [str(each.peer_address) for each in found] == ["p:1", "p:3"]
    anywhere = config_of(ProcessConfig(), HERE, 2).coordinator
    assert (anywhere.peer_port, anywhere.peer_address) == (0, None)


def test_each_process_has_a_kafka_port_of_its_own() -> None:
    """The connections of a member must all come to one of them."""
    given = {"kafka.port.listen": "localhost:9092", "kafka.port.advertised": "sidecar:19092"}
    third = config_of(load(None, {}, given), HERE, 2).kafka_port
    assert (*third.listen, *third.advertised) == (
        TcpAddress("localhost", 9094),
        TcpAddress("sidecar", 19094),
    )
