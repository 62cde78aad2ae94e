"""The composition root: the only place that names concrete classes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sharecoord import __version__
from sharecoord.api.grpc.server import make_server
from sharecoord.errors import SharecoordError
from sharecoord.ingest.log_reader import KafkaLogReader
from sharecoord.kafka.catalog import KafkaCatalog
from sharecoord.ports import Store
from sharecoord.runtime.clock import RuntimeClock
from sharecoord.runtime.committer import Committer
from sharecoord.runtime.context import Context
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.record_cache import MemoryBudget
from sharecoord.runtime.store_thread import StoreThread
from sharecoord.store.factory import make_store


@dataclass
class Running:
    """A coordinator that serves."""

    coordinator: Coordinator
    port: int
    stop: Callable[[], object]


async def run_minimal(
    kafka: Mapping[str, str | int | float | bool], store_url: str, listen: str
) -> None:
    """Serves until cancelled."""
    loop = asyncio.get_running_loop()
    clock = RuntimeClock(loop)
    catalog = KafkaCatalog(kafka)
    cluster_id = await catalog.cluster_id()
    store: Store = make_store(store_url)
    caller = StoreThread()
    await caller.call(
        store.open,
        coordinator_id="standalone",
        cluster_id=cluster_id,
        address=listen,
        version=__version__,
    )
    clock.measured(await caller.call(store.now_ms))
    failed: asyncio.Future[None] = loop.create_future()

    def fatal(error: SharecoordError) -> None:
        if not failed.done():
            failed.set_exception(error)

    committer = Committer(store, caller, now_ms=clock.now_ms, on_fatal=fatal)
    context = Context(
        coordinator_id="standalone",
        store=store,
        caller=caller,
        reader=KafkaLogReader(kafka),
        catalog=catalog,
        clock=clock,
        committer=committer,
        budget=MemoryBudget(256 << 20),
        new_incarnation=lambda: secrets.randbits(62) + 1,
        group_defaults={"share.auto.offset.reset": "earliest"},
    )
    coordinator = Coordinator(context)
    await coordinator.start()
    server = make_server(coordinator)
    port = server.add_insecure_port(listen)
    await server.start()
    print(f"listening on {listen} (port {port})", flush=True)  # noqa: T201
    try:
        await failed
    finally:
        await coordinator.close()
        await server.stop(1)
