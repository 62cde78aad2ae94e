"""Effects that happen once: a worker is ended, or stands still, at each point of its transaction.

The worker books each record in a table of its own database, without a key that would hide a second
booking. Whatever happens to it, each record is booked once and acknowledged.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sharecoord_sdk import AdminClient
from sharecoord_sdk.contrib.sqlalchemy import AckOutbox, AckRelay
from sqlalchemy import Engine, create_engine, text

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Topics, numbered_records
from tests.acceptance.chaos.crew import worker_environment
from tests.databases import DatabaseUnderTest
from tests.support import eventually, unique_name

pytestmark = pytest.mark.timeout(240)

RECORDS, HIT = 20, 7
WAIT_S = 90.0
"""Disks of crowded machines have stood still for half a minute."""
KILL, STOP = signal.SIGKILL, signal.SIGSTOP


class Shop:
    """A coordinator, a topic, and the database of the application."""

    def __init__(
        self, coordinator: CoordinatorProcess, topic: str, url: str, folder: Path, lock_s: int
    ) -> None:
        self.coordinator, self.topic, self.folder, self.url = coordinator, topic, folder, url
        self.group = unique_name("shop")
        self.engine: Engine = create_engine(url)
        self.outbox = AckOutbox(relay_after_s=0.2)
        self.admin = AdminClient({"bootstrap.servers": coordinator.address})
        self.workers: list[GuardedProcess] = []
        settings = {
            "share.record.lock.duration.ms": lock_s * 1000,
            "share.session.timeout.ms": lock_s * 1000,
            "share.heartbeat.interval.ms": 500,
            "share.ack.outbox": "true",
        }
        self.admin.alter_group_configs(self.group, settings)
        self.outbox.table.drop(self.engine, checkfirst=True)
        self.outbox.create(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS effect"))
            connection.execute(
                text("CREATE TABLE effect (record_offset BIGINT NOT NULL, who VARCHAR(9) NOT NULL)")
            )

    def hire(
        self,
        who: str,
        *,
        point: str = "nowhere",
        signum: signal.Signals = KILL,
        asyncio: bool = False,
    ) -> GuardedProcess:
        """Starts a worker that is hit at a point of record `HIT`."""
        argv = [sys.executable, "-u", "-m", "tests.acceptance.chaos.effects"]
        argv += ["--address", self.coordinator.address, "--group", self.group]
        argv += ["--topic", self.topic, "--database", self.url, "--who", who]
        argv += ["--point", point, "--offset", str(HIT), "--signal", str(int(signum))]
        argv += ["--asyncio"] if asyncio else []
        log = self.folder / f"{who}.log"
        process = GuardedProcess(who, argv, log_path=log, env=worker_environment())
        process.start()
        self.workers.append(process)
        return process

    def got(self, who: str) -> list[int]:
        """The records that a worker's handler was called with."""
        path = self.folder / f"{who}.log"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [int(line.removeprefix("got ")) for line in lines if line.startswith("got ")]

    def effects(self) -> dict[int, list[str]]:
        """Who booked each record."""
        found: dict[int, list[str]] = {}
        with self.engine.connect() as connection:
            for offset, who in connection.execute(text("SELECT record_offset, who FROM effect")):
                found.setdefault(offset, []).append(who)
        return found

    def is_finished(self) -> bool:
        """Whether the group has nothing left to do."""
        (group,) = self.admin.describe_groups([self.group], members=False)
        return [each.start_offset for each in group.offsets] == [RECORDS]

    def close(self) -> None:
        for process in self.workers:
            process.kill()
        self.admin.close()
        self.engine.dispose()


Open = Callable[..., Shop]


@pytest.fixture
def open_shop(
    coordinator: CoordinatorProcess,
    topic: Callable[..., str],
    topics: Topics,
    postgresql: DatabaseUnderTest,
    tmp_path: Path,
) -> Iterator[Open]:
    name = topic()
    topics.produce(name, numbered_records(RECORDS))
    opened: list[Shop] = []

    def make(*, lock_s: int = 1) -> Shop:
        opened.append(Shop(coordinator, name, postgresql.url, tmp_path, lock_s))
        return opened[-1]

    yield make
    for shop in opened:
        shop.close()


@pytest.mark.parametrize("asyncio", [False, True], ids=["plain", "asyncio"])
@pytest.mark.parametrize("point", ["before", "row", "effect", "committed"])
def test_a_worker_is_killed_and_no_effect_is_lost_or_doubled(
    open_shop: Open, point: str, asyncio: bool
) -> None:
    shop = open_shop()
    first = shop.hire("first", point=point, asyncio=asyncio)
    eventually(lambda: first.exit_code == -KILL, WAIT_S, "the first worker is killed")
    assert (shop.effects().get(HIT) == ["first"]) is (point == "committed")
    shop.hire("second", asyncio=asyncio)
    eventually(shop.is_finished, WAIT_S, "every record is acknowledged")
    effects = shop.effects()
    assert sorted(effects) == list(range(RECORDS))
    assert Counter(map(len, effects.values())) == {1: RECORDS}
    # It came again, and was acknowledged without a second effect.
    assert HIT in shop.got("second")
    assert effects[HIT] == (["first"] if point == "committed" else ["second"])


@pytest.mark.parametrize("point", ["before", "committed"])
def test_a_worker_stands_still_beyond_its_lock(open_shop: Open, point: str) -> None:
    shop = open_shop()
    first = shop.hire("first", point=point, signum=STOP)
    eventually(lambda: HIT in shop.got("first"), WAIT_S, "the first worker has the record")
    shop.hire("second")
    eventually(lambda: HIT in shop.got("second"), WAIT_S, "the second one gets it")
    eventually(lambda: HIT in shop.effects(), WAIT_S, "its effect is there")
    os.kill(first.pid, signal.SIGCONT)
    eventually(shop.is_finished, WAIT_S, "every record is acknowledged")
    assert first.exit_code is None
    effects = shop.effects()
    assert Counter(map(len, effects.values())) == {1: RECORDS}
    assert effects[HIT] == (["second"] if point == "before" else ["first"])


def test_what_a_killed_worker_committed_is_acknowledged_for_it(open_shop: Open) -> None:
    """Its lock would last for ten minutes; the record comes to nobody else."""
    shop = open_shop(lock_s=600)
    first = shop.hire("first", point="committed")
    eventually(lambda: first.exit_code == -KILL, WAIT_S, "the first worker is killed")
    assert HIT in in_flight(shop)
    conf = {"bootstrap.servers": shop.coordinator.address}
    with AckRelay(shop.outbox, shop.engine, conf, every_s=0.1):
        eventually(lambda: HIT not in in_flight(shop), WAIT_S, "the relay has settled it")
    assert shop.effects()[HIT] == ["first"]


def in_flight(shop: Shop) -> set[int]:
    """Records that are not finished."""
    ranges = shop.admin.list_in_flight(shop.group, shop.topic, 0)
    return {offset for each in ranges for offset in range(each.first_offset, each.last_offset + 1)}
