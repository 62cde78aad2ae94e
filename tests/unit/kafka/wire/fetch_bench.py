"""A fetcher over a cluster in memory, and a sink that writes down what comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sharecoord.errors import UnauthorizedError
from sharecoord.kafka.wire import fetch
from sharecoord.kafka.wire.cluster import Cluster
from sharecoord.kafka.wire.fetcher import Fetcher, Fetching
from sharecoord.testing.virtual_time import virtual
from tests.unit.kafka.wire.fake_kafka import FakeKafka, Log


class Sink:
    """Writes down what comes."""

    def __init__(self) -> None:
        self.found: list[fetch.Found] = []
        self.said: list[Any] = []
        self.fetching: Fetching | None = None
        self.at_s: list[float] = []
        self.drained_s: list[float] = []
        self.then: Callable[[fetch.Found], int | None] = lambda found: None
        self._changed = asyncio.Event()

    def _note(self, *what: Any) -> None:
        self.said.append(what)
        self.at_s.append(asyncio.get_running_loop().time())
        self._changed.set()

    def on_fetched(self, found: fetch.Found) -> int | None:
        if self.fetching is not None:
            self.drained_s.append(self.fetching.drained_s)
        answer = self.then(found)
        self.found.append(found)
        self._note("fetched", fetch.reach(found.records).next_offset)
        return answer

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        self._note("diverged", epoch, end_offset)

    def on_out_of_range(self) -> None:
        self._note("out of range")

    def on_gone(self) -> None:
        self._note("gone")

    def on_refused(self, error: UnauthorizedError) -> None:
        self._note("refused", error.message)

    async def until(self, *what: Any, times: int = 1) -> float:
        """Waits until it was told so; returns when."""
        try:
            async with asyncio.timeout(120):
                while len(self._met(what)) < times:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"not {what}, but {self.said}")
        return self._met(what)[0]

    def _met(self, what: Any) -> list[float]:
        """When it was told so; several batches may have come together."""
        return [
            at_s
            for at_s, said in zip(self.at_s, self.said, strict=True)
            if said == what or (said[0] == what[0] == "fetched" and said[1] > what[1])
        ]


class Bench:
    """A cluster in memory, and fetchers that read from it."""

    def __init__(self, patch: pytest.MonkeyPatch, kafka: FakeKafka, **settings: Any) -> None:
        self.kafka = kafka
        self.settings = {"bootstrap.servers": "kafka:9092", **settings}
        self.cluster: Cluster = kafka.cluster(patch, **settings)
        self.fetcher = Fetcher(
            self.cluster, self.settings, committed=bool(settings.get("committed"))
        )

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.fetcher.close()
        await self.cluster.close()

    def read(self, partition: int = 0, offset: int = 0, last_epoch: int = -1) -> Sink:
        sink = Sink()
        sink.fetching = self.fetcher.fetch("t", partition, offset, last_epoch, sink)
        return sink

    async def until(self, probe: Callable[[], object]) -> None:
        """Waits on virtual time until something holds."""
        for _ in range(120_000):
            if probe():
                return
            await asyncio.sleep(0.001)
        pytest.fail("it never holds")


def bench(
    *logs: Log, nodes: int = 1, fetch_versions: tuple[int, int] = (4, 17), **settings: Any
) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[..., None]]:
    """A test over one topic, "t", with these partitions; time is virtual."""

    def mark(test: Callable[[Bench], Awaitable[None]]) -> Callable[..., None]:
        def run(monkeypatch: pytest.MonkeyPatch) -> None:
            async def main() -> None:
                kafka = FakeKafka(nodes, fetch_versions=fetch_versions)
                kafka.add("t", *(Log(**vars(each)) for each in logs))
                for log in kafka.topics["t"].logs.values():
                    log.batches = list(log.batches)
                dotted = {name.replace("_", "."): value for name, value in settings.items()}
                async with Bench(monkeypatch, kafka, **dotted) as made:
                    await test(made)

            virtual(main)()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return mark


def filled(*counts: int, size: int = 0, **fields: Any) -> Log:
    log = Log(**fields)
    for count in counts:
        log.append(count, size)
    return log


def log_of(bench: Bench, partition: int = 0) -> Log:
    return bench.kafka.topics["t"].logs[partition]


def later(bench: Bench, count: int = 1, partition: int = 0, size: int = 0) -> None:
    log_of(bench, partition).append(count, size)
    bench.kafka.notify()
