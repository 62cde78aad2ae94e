"""A fleet of real processes on PostgreSQL: coordinators come, go, die and stand still under load.

Afterwards the workers' ledgers say that every record is processed, none came back after a confirmed
end, none was given out while another worker's lock was valid, and no delivery count was reset
(tests/acceptance/chaos/verdict.py). Where locks outlive what happens, no attempt was burnt either:
every record was delivered once.

Times are judged against the same run's own: the machine is as fast for the partitions that moved as
for those that did not.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import confluent_kafka
import pytest
from sharecoord_batches import codecs
from sharecoord_sdk import Message, ShareConsumer, TopicPartition
from sharecoord_sdk.admin import AdminClient

from sharecoord.devenv.processes import LOOPBACK, free_ports
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.fleet import (
    BUSY_S,
    DRAIN_MAX_S,
    PARTITIONS,
    FleetScene,
    burnt,
    fleet,
    goes_on,
    shared_fleet,
    trio,
)
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.proxy import TcpProxy
from tests.acceptance.chaos.scene import let_pass, passed
from tests.acceptance.chaos.verdict import LOCK_MARGIN_S
from tests.arrivals import Arrived, came
from tests.support import eventually, explicit, unique_name

__all__ = ["came", "fleet", "shared_fleet", "trio"]

pytestmark = pytest.mark.timeout(240)

UNDER_LOAD = {"work_ms": 1.0, "poll_records": 50}
LOAD_EACH_S, CHUNK = 0.05, 30
"""600 records a second at most."""

MOVE_MAX_S = 2.0
"""For so long nothing comes of a share-partition that is handed over."""

FAILOVER_MAX_S = 10.0
"""For so long nothing comes of one whose owner was killed; most of it is the lease."""

Owners = Mapping[int, str]


@contextmanager
def at_work(fleet: FleetScene, crew: Crew, *others: str) -> Iterator[Load]:
    """A worker at each of three coordinators, records come all the time, and some are through."""
    names = [crew.hire() for _ in range(3)]
    crew.produce(fleet.topics, CHUNK)
    crew.working(*names, *others)
    with Load(crew, fleet.topics, each_s=LOAD_EACH_S, chunk=CHUNK) as load:
        goes_on(crew)
        yield load


def everything_was_kept(fleet: FleetScene, crew: Crew, margin_s: float = LOCK_MARGIN_S) -> None:
    """All records are finished, and the ledgers tell of no broken promise."""
    crew.until_finished(fleet.url)
    findings = crew.verdict(fleet.url, margin_s)
    print(f"{len(crew.produced)} records, {findings}")
    assert findings.faults == ()


def pauses(load: Load, since_s: float, before: Owners, after: Owners) -> tuple[float, float]:
    """The slowest record since then of partitions that changed their owner, and of the others."""
    gone = {partition for partition, owner in before.items() if after[partition] != owner}
    assert gone, "something moved"
    paused_s = load.longest_wait_s(since_s, gone)
    others_s = load.longest_wait_s(since_s, before.keys() - gone)
    print(f"{sorted(gone)} moved: {paused_s:.2f} s, the others {others_s:.2f} s")
    return paused_s, others_s


# -- coming and going -----------------------------------------------------------------------------


def come(fleet: FleetScene, there: str, coming: str) -> None:
    """Some coordinators join those that are there."""
    for name in coming:
        fleet.made(name)
    with fleet.crew(**UNDER_LOAD) as crew:
        with at_work(fleet, crew) as load:
            before = fleet.owned_by(crew.group, *there)
            began_s = time.monotonic()
            fleet.start(*coming)
            after = fleet.owned_by(crew.group, *there, *coming)
            goes_on(crew)
            paused_s, others_s = pauses(load, began_s, before, after)
        everything_was_kept(fleet, crew)
    assert burnt(crew) == []
    assert paused_s <= MOVE_MAX_S + others_s


def test_a_coordinator_comes_under_load(trio: FleetScene) -> None:
    come(trio, "abc", "d")


def test_coordinators_come_under_load(fleet: FleetScene) -> None:
    fleet.start("a")
    come(fleet, "a", "bc")


def test_a_coordinator_goes_under_load(trio: FleetScene) -> None:
    leaving = trio.processes["b"]
    with trio.crew(**UNDER_LOAD) as crew:
        # Knows no other address than the one that goes: the notice alone can tell it where to go.
        guided = crew.hire(leaving.address)
        with at_work(trio, crew, guided) as load:
            before = trio.owned_by(crew.group, "a", "b", "c")
            assert trio.gateways(crew.group)[guided] == "b"
            began_s = time.monotonic()
            os.kill(leaving.pid, signal.SIGTERM)
            eventually(lambda: leaving.exit_code is not None, 30.0, "it has ended")
            took_s = time.monotonic() - began_s
            assert leaving.exit_code == 0, leaving.log_tail()
            after = trio.owned_by(crew.group, "a", "c")
            eventually(lambda: "b" not in trio.gateways(crew.group).values(), 30.0, "members moved")
            goes_on(crew)
            paused_s, others_s = pauses(load, began_s, before, after)
            print(f"gone after {took_s:.2f} s")
        everything_was_kept(trio, crew)
    assert burnt(crew) == []
    assert paused_s <= MOVE_MAX_S + others_s
    assert took_s <= DRAIN_MAX_S + BUSY_S


def test_a_rolling_restart_under_load(trio: FleetScene) -> None:
    names = "a", "b", "c"
    with trio.crew(**UNDER_LOAD) as crew:
        with at_work(trio, crew):
            for name in names:
                trio.processes[name].stop()
                trio.start(name)
                trio.owned_by(crew.group, *names)
                goes_on(crew)
        everything_was_kept(trio, crew)
    assert burnt(crew) == []


# -- dying and standing still ---------------------------------------------------------------------


def test_an_owner_is_killed(trio: FleetScene) -> None:
    """Its partitions go on elsewhere, and who held records of them keeps its locks."""
    with trio.crew(**UNDER_LOAD) as crew:
        with at_work(trio, crew) as load, another_group(trio, crew.topic) as (group, consumer):
            before = trio.owned_by(crew.group, "a", "b", "c")
            held = held_of(consumer, lambda: trio.owners(group), "b")
            began_s = time.monotonic()
            trio.processes["b"].kill()
            after = trio.owned_by(crew.group, "a", "c")
            trio.owned_by(group, "a", "c")
            goes_on(crew)
            paused_s, others_s = pauses(load, began_s, before, after)
            for message in held:
                consumer.acknowledge(message)
            answered = consumer.commit_sync(30.0)
            assert answered.keys() >= {TopicPartition(m.topic(), m.partition()) for m in held}
            assert set(answered.values()) == {None}
            assert {message.delivery_count() for message in held} == {1}
        everything_was_kept(trio, crew)
    assert paused_s <= FAILOVER_MAX_S + others_s


BATCH_RECORDS = 200
"""Of a batch in Kafka; of 500 bytes each, so that batches go whole also without compression."""

WHOLE = {"share.scheduled.delivery": "false", "share.partition.max.record.locks": "400"}
"""Nobody opens batches, and two of them are under locks at most."""


def fill(servers: str, topic: str, first: int) -> int:
    """Batches with lz4 and without it in each partition, from offset `first` on; where they end."""
    for at, compression in enumerate(("lz4", "none")):
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "compression.type": compression,
                "batch.num.messages": BATCH_RECORDS,
                "linger.ms": 1_000,
            }
        )
        begin = first + at * BATCH_RECORDS
        for partition in range(PARTITIONS):
            for offset in range(begin, begin + BATCH_RECORDS):
                value = b"%d %d " % (partition, offset)
                producer.produce(topic, value.ljust(500, b"."), partition=partition)
        assert producer.flush(30.0) == 0
    return first + 2 * BATCH_RECORDS


class Taker:
    """A consumer that acknowledges each record; `done` are those whose end is confirmed."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self._consumer = consumer
        self.done: set[tuple[int, int]] = set()

    def polled(self) -> list[Message]:
        """Records that were not done, with what the log has there, at their first delivery."""
        found = self._consumer.poll(1.0).records()
        for message in found:
            at = message.partition() or 0, message.offset() or 0
            assert at not in self.done
            assert message.delivery_count() == 1
            assert (message.value() or b"").startswith(b"%d %d " % at)
        return found

    def settle(self, messages: list[Message]) -> None:
        """Acknowledges them, and waits until that is durable."""
        for message in messages:
            self._consumer.acknowledge(message)
        assert set(self._consumer.commit_sync(30.0).values()) <= {None}
        self.done |= {(m.partition() or 0, m.offset() or 0) for m in messages}


def whole_of(came: list[Arrived], partitions: set[int]) -> tuple[float, set[int]]:
    """Of what came of these partitions: the part that came whole, and its compressions."""
    there = [each for each in came if each.batch.partition.partition in partitions]
    whole = [each for each in there if each.contents]
    records, of_whole = (sum(each.batch.record_count for each in x) for x in (there, whole))
    return of_whole / max(records, 1), set().union(*(each.compressions for each in whole))


def test_whole_batches_come_from_an_owner_elsewhere_and_from_the_next(
    trio: FleetScene, came: list[Arrived]
) -> None:
    """A member at a gets them from b, keeps its locks when b is killed, and gets the rest whole."""
    topic, both = unique_name("t"), {codecs.LZ4, 0}
    trio.topics.create(topic, partitions=PARTITIONS)
    with another_group(trio, topic, WHOLE) as (group, consumer):
        taker, end = Taker(consumer), fill(trio.kafka, topic, 0)

        def of_owner_b() -> set[int]:
            return {partition for partition, owner in trio.owners(group).items() if owner == "b"}

        def held() -> list[Message] | None:
            messages, of_b = taker.polled(), of_owner_b()
            kinds = whole_of(came, of_b)[1]
            if kinds == both and any(m.partition() in of_b for m in messages):
                return messages
            taker.settle(messages)
            return None

        holding = eventually(held, 60.0, "records that b owns, and batches of both kinds before")
        of_b = of_owner_b()
        assert whole_of(came, of_b)[0] > 0.5
        trio.processes["b"].kill()
        end, before = fill(trio.kafka, topic, end), len(came)
        owners = trio.owned_by(group, "a", "c")
        taker.settle(holding)
        assert set(trio.gateways(group).values()) == {"a"}

        def all_done() -> bool:
            taker.settle(taker.polled())
            return len(taker.done) == PARTITIONS * end

        eventually(all_done, 60.0, "all records")
        part, compressions = whole_of(came[before:], of_b)
        assert (part > 0.5, compressions) == (True, both), owners
    trio.topics.delete(topic)


@contextmanager
def another_group(
    fleet: FleetScene, topic: str, configs: Mapping[str, str] | None = None
) -> Iterator[tuple[str, ShareConsumer]]:
    """A group with one member, whose locks last for a minute; its stream is at a."""
    address, group = fleet.processes["a"].address, fleet.new_group(topic)
    with AdminClient({"bootstrap.servers": address}) as admin:
        admin.alter_group_configs(
            group, {"share.record.lock.duration.ms": "60000", **(configs or {})}
        )
    with ShareConsumer(explicit(address, group)) as consumer:
        consumer.subscribe([topic])
        yield group, consumer


def held_of(consumer: ShareConsumer, owners: Callable[[], Owners], name: str) -> list[Message]:
    """Polls until it holds records of somebody's partitions; those, and others with them."""

    def held() -> list[Message] | None:
        messages = consumer.poll(1.0).records()
        of = owners()
        if any(of[message.partition() or 0] == name for message in messages):
            return messages
        for message in messages:
            consumer.acknowledge(message)
        return None

    return eventually(held, 60.0, f"a record that {name} owns")


@pytest.mark.parametrize("still_s", [8.0, pytest.param(30.0, marks=pytest.mark.long)])
def test_a_coordinator_stands_still(trio: FleetScene, still_s: float) -> None:
    """Others serve for it; what it wants to say afterwards changes nothing; it comes back."""
    with trio.crew(**UNDER_LOAD) as crew:
        with at_work(trio, crew):
            trio.owned_by(crew.group, "a", "b", "c")
            elsewhere = [w for w, at in trio.gateways(crew.group).items() if at != "b"]
            assert len(elsewhere) == 2
            frozen_s = time.monotonic()
            trio.freeze("b")
            try:
                trio.owned_by(crew.group, "a", "c")
                for name in elsewhere:
                    goal = crew.look().handled[name] + 50
                    crew.until(lambda n=name, g=goal: crew.tally.handled[n] >= g, 30.0, name)
                eventually(passed(frozen_s, still_s), still_s + 30.0, "it stood still")
            finally:
                trio.thaw("b")
            trio.owned_by(crew.group, "a", "b", "c")
            goes_on(crew)
        # What lay in its sockets is counted from when it goes on.
        everything_was_kept(trio, crew, LOCK_MARGIN_S + still_s)


# -- the network ----------------------------------------------------------------------------------


def cut(proxy: TcpProxy) -> None:
    proxy.cut()


def stall(proxy: TcpProxy) -> None:
    proxy.stall()


BROKEN_S = 7.0
"""Longer than a lease, and than a link may be silent."""

EACH = pytest.mark.parametrize(
    "fault",
    [pytest.param(cut, id="cut"), pytest.param(stall, id="stall", marks=pytest.mark.long)],
)


@EACH
def test_the_way_between_coordinators_breaks(
    fleet: FleetScene, fault: Callable[[TcpProxy], None]
) -> None:
    """Nobody reaches the owner b; members elsewhere get what others own, its own get everything."""
    (port,) = free_ports(1)
    with TcpProxy(f"{LOOPBACK}:{port}") as proxy:
        fleet.made("b", coordinator_peer_port=port, coordinator_peer_address=proxy.address)
        fleet.start("a", "b", "c")
        eventually(lambda: proxy.accepted >= 2, 30.0, "the others come by the proxy")
        broken(fleet, proxy, fault)


@EACH
def test_the_way_to_the_store_breaks(fleet: FleetScene, fault: Callable[[TcpProxy], None]) -> None:
    """The others take over what b owns, and it takes it back."""
    place = urlsplit(fleet.url).netloc.rpartition("@")[2]
    with TcpProxy(place) as proxy:
        fleet.made("b", store_url=fleet.url.replace(place, proxy.address))
        fleet.start("a", "b", "c")
        assert proxy.accepted, "it comes by the proxy"
        broken(fleet, proxy, fault)


def broken(fleet: FleetScene, proxy: TcpProxy, fault: Callable[[TcpProxy], None]) -> None:
    """Records go on during the fault and after it, and everything is kept."""
    with fleet.crew(**UNDER_LOAD) as crew:
        with at_work(fleet, crew):
            fleet.owned_by(crew.group, "a", "b", "c")
            began_s = time.monotonic()
            fault(proxy)
            goes_on(crew)
            eventually(passed(began_s, BROKEN_S), BROKEN_S + 30.0, "it was broken")
            proxy.heal()
            fleet.owned_by(crew.group, "a", "b", "c")
            goes_on(crew)
        broken_s = time.monotonic() - began_s
        everything_was_kept(fleet, crew, LOCK_MARGIN_S + broken_s)


def test_a_stream_is_cut_before_what_was_committed_came(trio: FleetScene) -> None:
    """The member's lock book says that it never came: it goes back, and no attempt is burnt."""
    with (
        TcpProxy(trio.processes["a"].address) as proxy,
        trio.crew(**UNDER_LOAD) as crew,
    ):
        victim = crew.hire(proxy.address)
        with at_work(trio, crew, victim):
            proxy.stall()

            def on_their_way() -> bool:
                seen = {entry.offset for entry in crew.locks()}
                return bool(trio.acquired(crew.group, victim) - seen)

            let_pass(1.0)
            crew.until(on_their_way, 30.0, "records are committed to a member and do not come")
            proxy.cut()
            proxy.heal()
            goes_on(crew)
            goal = crew.look().handled[victim] + 50
            crew.until(lambda: crew.tally.handled[victim] >= goal, 30.0, "the member goes on")
        everything_was_kept(trio, crew)
    assert burnt(crew) == []
