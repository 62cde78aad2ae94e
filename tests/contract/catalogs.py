"""Both catalogs of a real cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sharecoord.ingest.raw_reader import RawLogReader
from sharecoord.kafka.catalog import KafkaCatalog
from sharecoord.kafka.refusals import Refusals
from sharecoord.kafka.wire.catalog import WireCatalog
from sharecoord.ports import TopicCatalog

CATALOGS = ("wire", "librdkafka")


@asynccontextmanager
async def asking(kind: str, bootstrap_servers: str, **settings: Any) -> AsyncIterator[TopicCatalog]:
    """A catalog that is closed at the end; `settings` are librdkafka's, with `_` for `.`."""
    found = {"bootstrap.servers": bootstrap_servers}
    found |= {key.replace("_", "."): value for key, value in settings.items()}
    if kind == "librdkafka":
        catalog = KafkaCatalog(found)
        yield catalog
        await catalog.close()
        return
    # As in a coordinator: on the reader's cluster.
    refusals = Refusals()
    reader = RawLogReader(found, refusals)
    wire = WireCatalog(reader.cluster, refusals)
    try:
        yield wire
    finally:
        await wire.close()
        await reader.close()
