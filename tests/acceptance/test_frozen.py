"""Who stands still with open connections (SIGSTOP, a frozen virtual machine) is noticed in time.

docs/operations.md promises 15 s to workers; the server and the links between coordinators have
limits of their own (`sharecoord.wire.transport`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest
from sharecoord_sdk import AsyncShareConsumer, KafkaError, ShareConsumer

from sharecoord.api.grpc.server import OPTIONS as SERVER_OPTIONS
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Record, Topics
from sharecoord.peers.links import channel_maker
from tests.acceptance.chaos.fleet import PARTITIONS, FleetScene, fleet_scene
from tests.acceptance.chaos.proxy import TcpProxy
from tests.databases import DatabaseUnderTest
from tests.support import KafkaUnderTest, eventually, unique_name

pytestmark = pytest.mark.timeout(240)

WORKER_NOTICES_S, SERVER_NOTICES_S, LINK_NOTICES_S = 15.0, 30.0, 8.0
TOLD_AFTER_S = 10.0
"""socket.connection.setup.timeout.ms: without any coordinator for so long, error_cb hears of it."""
BUSY_S = 8.0
"""What a busy machine may add; gRPC's own limit, a minute, is far above all of these."""

METHOD = "/frozen.Test/Talk"


def conf(addresses: str, group: str) -> dict[str, Any]:
    return {"bootstrap.servers": addresses, "group.id": group}


@dataclass(frozen=True, slots=True)
class Notices:
    """Who notices what, begun together: each of them waits for tens of seconds."""

    at_workers: Future[None]
    when_alone: Future[None]
    at_server_and_links: Future[None]


@pytest.fixture(scope="module")
def notices(
    kafka_broker: KafkaUnderTest,
    postgresql: DatabaseUnderTest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Notices]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="notices")
    thread.start()
    directory, alone = (tmp_path_factory.mktemp(name) for name in ("fleet", "alone"))
    with (
        fleet_scene(kafka_broker, postgresql, directory) as fleet,
        ThreadPoolExecutor(1) as pool,
    ):
        yield Notices(
            asyncio.run_coroutine_threadsafe(go_on_at_another(fleet), loop),
            pool.submit(is_said, kafka_broker.bootstrap_servers, alone),
            asyncio.run_coroutine_threadsafe(silence_is_noticed(), loop),
        )
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_workers_of_a_frozen_coordinator_go_on_at_another(notices: Notices) -> None:
    """Both shells, with streams at it; what is produced meanwhile comes to them."""
    notices.at_workers.result()


def test_a_lone_frozen_coordinator_is_said(notices: Notices) -> None:
    """There is nowhere else to go: a line of the log, then error_cb, say so."""
    notices.when_alone.result()


def test_server_and_links_notice_a_silent_peer(notices: Notices) -> None:
    """A link between coordinators gives up after 8 s, a server after 30 s."""
    notices.at_server_and_links.result()


async def go_on_at_another(fleet: FleetScene) -> None:
    await asyncio.to_thread(fleet.start, "a", "b")
    topic, group = unique_name("t"), unique_name("g")
    fleet.topics.create(topic, partitions=PARTITIONS)
    addresses = ",".join(fleet.processes[name].address for name in "ba")
    got: set[str] = set()
    # Chance says where a consumer begins: both at b.
    with mock.patch.object(random, "random", return_value=0.0):
        made = ShareConsumer(conf(addresses, group)), AsyncShareConsumer(conf(addresses, group))
    with made[0] as plain:
        async with made[1] as shell:
            plain.subscribe([topic])
            await shell.subscribe([topic])

            async def poll() -> None:
                batches = plain.poll(0.05), await shell.poll(0.05)
                got.update((m.value() or b"").decode() for batch in batches for m in batch)

            async def until(done: Callable[[], bool], timeout_s: float, what: str) -> float:
                began_s = time.monotonic()
                while not done():
                    assert time.monotonic() - began_s < timeout_s, f"{what}: {sorted(got)}"
                    await poll()
                return time.monotonic() - began_s

            at_b = [("b",), ("b",)]
            query = f"SELECT gateway FROM member WHERE group_id = '{group}'"
            await until(lambda: fleet.sql(query) == at_b, 30.0, "both have joined at b")
            fleet.freeze("b")
            try:
                wanted = {f"after-{number}" for number in range(50)}
                records = [Record(None, value.encode()) for value in sorted(wanted)]
                fleet.topics.produce(topic, records, partition=None)
                took_s = await until(
                    lambda: wanted <= got, WORKER_NOTICES_S + BUSY_S, "everything came"
                )
                print(f"all records after {took_s:.1f} s")
            finally:
                fleet.thaw("b")


class Lines(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def is_said(servers: str, directory: Path) -> None:
    heard: list[KafkaError] = []
    topic, lines, logger = unique_name("t"), Lines(), logging.getLogger("alone")
    logger.addHandler(lines)
    with CoordinatorProcess(servers, directory) as coordinator:
        Topics(servers).create(topic)
        given = conf(coordinator.address, unique_name("g"))
        given |= {"error_cb": heard.append, "logger": logger}
        with ShareConsumer(given) as consumer:
            consumer.subscribe([topic])
            consumer.poll(1.0)
            os.kill(coordinator.pid, signal.SIGSTOP)
            try:

                def said() -> bool:
                    consumer.poll(0.05)
                    return any("joining again" in each for each in lines.said)

                eventually(said, WORKER_NOTICES_S + BUSY_S, "the log says that it is gone")

                def told() -> bool:
                    consumer.poll(0.05)
                    return bool(heard)

                eventually(told, TOLD_AFTER_S + BUSY_S, "error_cb hears of it")
            finally:
                os.kill(coordinator.pid, signal.SIGCONT)
    assert coordinator.address in heard[0].str()
    assert "answers nothing" in heard[0].str() or "nobody answers" in heard[0].str()


async def silence_is_noticed() -> None:
    talking, ended = asyncio.Event(), asyncio.Event()

    async def talk(_: object, context: Any) -> None:
        talking.set()
        try:
            await context.write(b"hello")
            await context.read()
        finally:
            ended.set()

    handler = grpc.stream_stream_rpc_method_handler(talk)
    service, _, method = METHOD.removeprefix("/").partition("/")
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with TcpProxy(f"127.0.0.1:{port}") as proxy:
        async with channel_maker(None)(proxy.address) as made:
            channel: Any = made
            call = channel.stream_stream(METHOD)()
            assert await call.read() == b"hello"
            proxy.stall()
            async with asyncio.timeout(LINK_NOTICES_S + BUSY_S):
                with pytest.raises(grpc.aio.AioRpcError):
                    await call.read()
            assert talking.is_set()
            async with asyncio.timeout(SERVER_NOTICES_S + BUSY_S):
                await ended.wait()
        proxy.heal()
    await server.stop(None)
