"""A relay of outputs ends, or stands still, at each step of its way: each record arrives once.

A step is the begin or the commit of a SQL transaction, or the moment before or after a call of
Kafka. A life that is over does nothing more: no handler of an exception, no `finally` of it reaches
Kafka or the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_sdk.contrib.sqlalchemy import ProduceOutbox, ProduceRelay
from sqlalchemy import Engine, create_engine, event, select

from .fake_kafka import FakeBroker

STEPS_MAX = 200
WAIT_S = 30.0


class Death(BaseException):
    """The process is gone."""


class Life:
    """The steps of one process."""

    def __init__(self, at: int = 0, meet: Callable[[], None] | None = None) -> None:
        self.at, self.meet = at, meet
        self.names: list[str] = []
        self.is_over = False

    def __call__(self, name: str) -> None:
        if self.is_over:
            raise Death
        self.names.append(name)
        if len(self.names) == self.at:
            if self.meet is None:
                self.is_over = True
                raise Death
            self.meet()


class World:
    """A broker, a database, and the relays that come and go; the records of a topic are counted."""

    def __init__(self, path: Path) -> None:
        self.broker = FakeBroker("a", "b")
        self.broker.record_bytes_max["b"] = 100
        self.now_s = 1_800_000_000.0
        self.url = f"sqlite:///{path}"
        self.engines: list[Engine] = []
        self.outputs = ProduceOutbox()
        self.engine = self._engine(Life())
        self.outputs.create(self.engine)
        self.produced: dict[str, list[bytes]] = {"a": [], "b": []}

    def _engine(self, life: Life) -> Engine:
        made = create_engine(self.url)
        event.listen(made, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
        event.listen(made, "begin", lambda connection: life("begin"))
        event.listen(made, "commit", lambda connection: life("commit"))
        self.engines.append(made)
        return made

    def relay(self, life: Life, **settings: int) -> ProduceRelay:
        conf = {"bootstrap.servers": "localhost:9092", "step": life}
        return ProduceRelay(
            self.outputs,
            self._engine(life),
            conf,
            transactional_id="ledger",
            clock=lambda: self.now_s,
            **{"rows_max": 3, **settings},
        )

    def work(self) -> None:
        """A handler commits some records: of two topics, one too large, one for no topic."""
        with self.engine.begin() as connection:
            for topic, count in (("a", 3), ("b", 2)):
                for _ in range(count):
                    value = b"%d" % len(self.produced[topic])
                    self.produced[topic].append(value)
                    self.outputs.produce(connection, topic, value)
            self.outputs.produce(connection, "b", b"x" * 101)
            self.outputs.produce(connection, "missing", b"m")

    def live(self, life: Life) -> None:
        """A relay looks, a handler commits, it looks again."""
        relay = self.relay(life)
        try:
            for _ in range(2):
                self.work()
                relay.run_once()
        except Death:
            assert life.is_over

    def finish(self) -> None:
        """A relay without faults takes over."""
        relay = self.relay(Life())
        for _ in range(3):
            relay.run_once()
            self.now_s += 11
        relay.stop()

    def judge(self) -> None:
        """Each record that Kafka takes is there once, in order; the others are still here."""
        for topic, values in self.produced.items():
            assert self.broker.values(topic) == values
        columns = self.outputs.table.c
        query = select(columns.topic, columns.error.is_not(None)).order_by(columns.id)
        with self.engine.connect() as connection:
            left = [tuple(row) for row in connection.execute(query)]
        assert left == [("b", True), ("missing", False)] * (len(left) // 2)

    def close(self) -> None:
        for each in self.engines:
            each.dispose()


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[World]]:
    """The world that was made last is the one that clients speak to."""
    worlds: list[World] = []
    monkeypatch.setattr(confluent_kafka, "Producer", lambda c: worlds[-1].broker.producer(c))
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda c: worlds[-1].broker.consumer(c))
    yield worlds
    for world in worlds:
        world.close()


def test_a_life_has_all_the_steps(tmp_path: Path, kafka: list[World]) -> None:
    """What the other tests rest on."""
    world, life = World(tmp_path / "app.db"), Life()
    kafka.append(world)
    world.live(life)
    calls = ("metadata", "init", "flush", "offsets", "commit", "abort")
    assert {*(f"before {call}" for call in calls), "begin", "commit"} <= set(life.names)
    assert 50 < len(life.names) < STEPS_MAX
    world.finish()
    world.judge()


def test_it_ends_at_each_step(tmp_path: Path, kafka: list[World]) -> None:
    died = 0
    for at in range(1, STEPS_MAX):
        world, life = World(tmp_path / f"{at}.db"), Life(at)
        kafka.append(world)
        world.live(life)
        died += life.is_over
        world.finish()
        world.judge()
        if not life.is_over:
            break
        world.close()
    assert died == at - 1 > 50


@given(st.lists(st.integers(1, 90), min_size=2, max_size=5))
def test_it_ends_again_and_again(
    tmp_path_factory: pytest.TempPathFactory, lives: list[int]
) -> None:
    """Each one dies while it works off what the former ones left."""
    patch = pytest.MonkeyPatch()
    world = World(tmp_path_factory.mktemp("lives") / "app.db")
    patch.setattr(confluent_kafka, "Producer", world.broker.producer)
    patch.setattr(confluent_kafka, "Consumer", world.broker.consumer)
    try:
        for at in lives:
            life = Life(at)
            world.live(life)
            # The next one sees that it is gone.
            world.relay(Life()).run_once()
            world.now_s += 11
        world.finish()
        world.judge()
    finally:
        world.close()
        patch.undo()


def test_it_stands_still_at_each_step_and_goes_on(tmp_path: Path, kafka: list[World]) -> None:
    """Another relay works it all off meanwhile. Inside of a SQL transaction the database would
    have that one wait."""
    stood = 0
    for at in range(1, STEPS_MAX):
        world = World(tmp_path / f"{at}.db")
        kafka.append(world)
        still, goes_on = threading.Event(), threading.Event()

        def meet(still: threading.Event = still, goes_on: threading.Event = goes_on) -> None:
            still.set()
            assert goes_on.wait(WAIT_S)

        life = Life(at, meet)
        first = world.relay(life)
        ended: list[KafkaException] = []

        def look(world: World = world, first: ProduceRelay = first, ended: list[KafkaException] = ended) -> None:
            try:
                world.work()
                first.run_once()
            except KafkaException as error:
                ended.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        while not still.wait(0.001) and thread.is_alive():
            pass
        if not still.is_set():
            thread.join()
            break
        if life.names[-1] != "commit":
            stood += 1
            second = world.relay(Life())
            for _ in range(3):
                second.run_once()
                world.now_s += 11
            world.work()
        goes_on.set()
        thread.join()
        for error in ended:
            assert error.args[0].fatal(), "fenced"
        world.now_s += 11
        first.run_once()
        world.now_s += 11
        first.stop()
        world.finish()
        world.judge()
        world.close()
    assert stood > 20
