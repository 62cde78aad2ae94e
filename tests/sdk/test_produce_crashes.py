"""A relay of outputs ends, or stands still, at each step of its way: each record arrives once.

A step is a statement or the commit of a SQL transaction, or the moment before or after a call of
Kafka. A life that is over does nothing more: no handler of an exception, no `finally` of it reaches
Kafka or the database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import greenlet
import pytest
from confluent_kafka import KafkaException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sharecoord_sdk.contrib.sqlalchemy import ProduceOutbox, ProduceRelay
from sqlalchemy import Connection, Engine, create_engine, event, select

from tests.sdk.fake_kafka import FakeBroker

STEPS_MAX = 200
LOOK_MAX = 40


class Death(BaseException):
    """The process is gone."""


class Life:
    """The steps of one process; it ends at one of them, or lets others go first at each."""

    def __init__(self, at: int = 0, let: Callable[[], object] | None = None) -> None:
        self.at, self.let = at, let
        self.names: list[str] = []
        self.is_over = False
        self.has_lock = False
        """Of SQLite: it has one writer."""

    def __call__(self, name: str, *, is_locked: bool = False) -> None:
        if self.is_over:
            raise Death
        self.names.append(name)
        if len(self.names) == self.at:
            self.is_over = True
            raise Death
        # With a lock held, the database has others wait.
        if self.let is not None and not is_locked:
            self.let()

    def watch(self, engine: Engine) -> None:
        """Each statement and each commit is a step."""

        def execute(connection: Connection, cursor: object, statement: str, *_: object) -> None:
            self("statement", is_locked=self.has_lock)
            self.has_lock = self.has_lock or not statement.startswith("SELECT")

        def end(connection: Connection) -> None:
            self.has_lock = False

        def commit(connection: Connection) -> None:
            self("commit", is_locked=self.has_lock)
            end(connection)

        event.listen(engine, "before_cursor_execute", execute)
        event.listen(engine, "commit", commit)
        event.listen(engine, "rollback", end)


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
        # Fast; and what has no order comes in the other one.
        for pragma in ("synchronous = OFF", "reverse_unordered_selects = ON"):
            event.listen(made, "connect", lambda raw, _, text=pragma: raw.execute(f"PRAGMA {text}"))
        life.watch(made)
        self.engines.append(made)
        return made

    def relay(self, life: Life) -> ProduceRelay:
        conf = {"bootstrap.servers": "localhost:9092", "step": life}
        return ProduceRelay(
            self.outputs,
            self._engine(life),
            conf,
            transactional_id="ledger",
            clock=lambda: self.now_s,
            rows_max=3,
        )

    def work(self) -> None:
        """Handlers commit records: of two topics, one too large, one for no topic."""
        self.put("a", 3)
        self.put("b", 2)
        with self.engine.begin() as connection:
            self.outputs.produce(connection, "b", b"x" * 101)
            self.outputs.produce(connection, "missing", b"m")

    def put(self, topic: str, count: int) -> None:
        """A handler commits."""
        with self.engine.begin() as connection:
            for _ in range(count):
                value = b"%d" % len(self.produced[topic])
                self.produced[topic].append(value)
                self.outputs.produce(connection, topic, value)

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

    def rules(self) -> None:
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


Open = Callable[[], World]


@pytest.fixture
def open_world(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Worlds one after the other; clients speak to the broker of the last one."""
    worlds: list[World] = []

    def make() -> World:
        if worlds:
            worlds[-1].close()
        worlds.append(World(tmp_path_factory.mktemp("world") / "app.db"))
        return worlds[-1]

    monkeypatch.setattr(confluent_kafka, "Producer", lambda c: worlds[-1].broker.producer(c))
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda c: worlds[-1].broker.consumer(c))
    yield make
    worlds[-1].close()


# The fixture opens a new world whenever it is called.
several = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)


def test_a_life_has_all_the_steps(open_world: Open) -> None:
    """What the other tests rest on."""
    world, life = open_world(), Life()
    world.live(life)
    calls = ("metadata", "init", "flush", "offsets", "commit", "abort")
    assert {*(f"before {call}" for call in calls), "statement", "commit"} <= set(life.names)
    assert 100 < len(life.names) < STEPS_MAX
    world.finish()
    world.rules()


def test_it_ends_at_each_step(open_world: Open) -> None:
    life, at = Life(), 0
    while life.is_over or not at:
        at += 1
        world, life = open_world(), Life(at)
        world.live(life)
        world.finish()
        world.rules()
    assert at > 100


@several
@given(st.lists(st.integers(1, STEPS_MAX), min_size=2, max_size=5))
def test_it_ends_again_and_again(open_world: Open, lives: list[int]) -> None:
    """Each one dies while it works off what the former ones left."""
    world = open_world()
    for at in lives:
        world.live(Life(at))
        # The next one sees that it is gone.
        world.relay(Life()).run_once()
        world.now_s += 11
    world.finish()
    world.rules()


class Process:
    """A relay that looks again and again, stops at each step, and takes all others for gone."""

    def __init__(self, world: World) -> None:
        self.looks = 0
        self._main = greenlet.getcurrent()
        self._relay = world.relay(Life(let=self._main.switch))
        self._relay._rows._takeover_s = 0.0
        self._life = greenlet.greenlet(self._work)

    def _work(self) -> None:
        while True:
            with contextlib.suppress(KafkaException):
                self._relay.run_once()
            self.looks += 1
            self._main.switch()

    def go(self, steps: int) -> bool:
        """Some steps, or to the end of a look; whether that came first."""
        before = self.looks
        for _ in range(steps):
            self._life.switch()
            if self.looks > before:
                return True
        return False

    def kill(self) -> None:
        self._life.throw()


def test_two_stand_still_at_any_two_steps(open_world: Open) -> None:
    """The first one goes on while the second one, which took over from it, stands still."""
    world, met = open_world(), 0
    for at in range(1, LOOK_MAX):
        for other in range(1, LOOK_MAX):
            first, second, last = (Process(world) for _ in range(3))
            world.put("a", 1)
            if is_over := first.go(at) or second.go(other):
                second.kill()
            met += not is_over
            for each in (first, second, last):
                each.go(LOOK_MAX)
                each.kill()
            world.rules()
            if is_over:
                break
        if other == 1:
            break
    assert met > 200


@several
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, LOOK_MAX)), min_size=5, max_size=40))
def test_they_stand_still_anywhere_and_go_on(
    open_world: Open, turns: list[tuple[int, int]]
) -> None:
    world = open_world()
    lives = [Process(world) for _ in range(3)]
    for who, steps in turns:
        world.work()
        lives[who].go(steps)
    for life in lives:
        life.go(STEPS_MAX)
        life.kill()
    world.now_s += 11
    world.finish()
    world.rules()
