"""What operators do to a fleet: through any coordinator, while share-partitions move."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sharecoord_sdk import ShareConsumer
from sharecoord_sdk.admin import AdminClient, ResetTo

from sharecoord.core.states import RecordState
from sharecoord.demo.ledger import Verb
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.fleet import (
    LOCK_MS,
    PARTITIONS,
    FleetScene,
    fleet,
    shared_fleet,
    trio,
)
from tests.acceptance.chaos.records import partition_of
from tests.support import eventually

__all__ = ["fleet", "shared_fleet", "trio"]

pytestmark = pytest.mark.timeout(240)

RECORDS = 20 * PARTITIONS
NEW_LOCK_MS = LOCK_MS - 3_000
NOTICE_MAX_S = 2.0
"""Until an owner without members and without anything to commit knows what was done elsewhere."""


@contextmanager
def admin_at(fleet: FleetScene, name: str) -> Iterator[AdminClient]:
    """Operates through one coordinator."""
    address = fleet.processes[name].address
    with AdminClient({"bootstrap.servers": address, "request.timeout.ms": 20_000}) as admin:
        yield admin


def reset(fleet: FleetScene, crew: Crew, name: str) -> None:
    """Back to the beginning, all partitions."""
    with admin_at(fleet, name) as admin:
        results = admin.reset_offsets(crew.group, ResetTo.earliest(), force=True)
    assert [result.error for result in results] == [None] * PARTITIONS


def got_since(crew: Crew, since_s: float) -> dict[int, float]:
    """When each record came out of a poll for the first time since then."""
    found: dict[int, float] = {}
    for entry in sorted(crew.look().entries):
        if entry.verb is Verb.GOT and entry.time_s >= since_s:
            found.setdefault(entry.offset, entry.time_s)
    return found


def all_again(crew: Crew, since_s: float) -> None:
    """Waits until every record was delivered since then."""
    crew.until(lambda: got_since(crew, since_s).keys() == crew.produced, 60.0, "all came again")


def test_resets_while_share_partitions_move_are_for_all_of_them_or_none(trio: FleetScene) -> None:
    epochs: set[tuple[int, int]] = set()
    with trio.crew(poll_records=20) as crew:
        crew.working(crew.hire(), crew.hire())
        crew.produce(trio.topics, RECORDS)
        crew.until_finished(trio.url)

        def look() -> bool:
            query = f"FROM share_partition WHERE group_id = '{crew.group}'"
            ((least, most),) = trio.sql(f"SELECT min(state_epoch), max(state_epoch) {query}")
            epochs.add((least, most))
            return len(set(trio.owners(crew.group).values())) == 4

        trio.made("d").launch()
        done = 0
        while not (look() and done >= 6):
            reset(trio, crew, "abc"[done % 3])
            done += 1
            assert done < 400, "d never came"
        began_s = time.monotonic()
        reset(trio, crew, "d")
        look()
        all_again(crew, began_s)
        crew.until_finished(trio.url)
    assert {most - least for least, most in epochs} == {0}
    assert (done + 1, done + 1) in epochs, "each of them was counted once"


def test_an_idle_owner_notices_a_reset(trio: FleetScene) -> None:
    """Nobody has joined at b and c, and all is finished: only the watch can tell them."""
    with trio.crew(poll_records=20, address=trio.processes["a"].address) as crew:
        crew.working(crew.hire())
        crew.produce(trio.topics, RECORDS)
        crew.until_finished(trio.url)
        owners = trio.owned_by(crew.group, "a", "b", "c")
        began_s = time.monotonic()
        reset(trio, crew, "c")
        reset_s = time.monotonic()
        all_again(crew, began_s)
        first_s: dict[str, float] = {}
        for place, at_s in got_since(crew, began_s).items():
            owner = owners[partition_of(place)]
            first_s[owner] = min(first_s.get(owner, at_s), at_s)
        waited_s = {owner: at_s - reset_s for owner, at_s in sorted(first_s.items())}
        print({owner: f"{each:.2f} s" for owner, each in waited_s.items()})
        crew.until_finished(trio.url)
    # c did it itself: what it takes on this machine is not its notice.
    at_once_s = max(0.0, waited_s.pop("c"))
    assert max(waited_s.values()) <= NOTICE_MAX_S + at_once_s


def test_offsets_that_were_deleted_are_forgotten_by_all_owners(trio: FleetScene) -> None:
    with trio.crew(poll_records=20) as crew:
        worker = crew.hire()
        crew.working(worker)
        crew.produce(trio.topics, RECORDS)
        crew.until_finished(trio.url)
        crew.dismiss(worker)
        with admin_at(trio, "b") as admin:
            assert admin.delete_offsets(crew.group, [crew.topic]) == {crew.topic: None}
        assert trio.owners(crew.group) == {}
        began_s = time.monotonic()
        crew.working(crew.hire())
        all_again(crew, began_s)
        crew.until_finished(trio.url)
        counts = {e.delivery_count for e in crew.tally.entries if e.verb is Verb.GOT}
    assert counts == {1}, "they begin anew"


def test_a_setting_that_was_changed_holds_at_all_owners(fleet: FleetScene) -> None:
    fleet.start("a", "b")
    with fleet.crew() as crew:
        conf = {
            "bootstrap.servers": fleet.processes["a"].address,
            "group.id": crew.group,
            "share.acknowledgement.mode": "explicit",
        }
        with ShareConsumer(conf) as consumer:
            consumer.subscribe([crew.topic])
            crew.produce(fleet.topics, RECORDS)
            seen: dict[int, int] = {}

            def all_have(lock_ms: int) -> bool:
                crew.produce(fleet.topics, RECORDS)
                for message in consumer.poll(1.0).records():
                    consumer.acknowledge(message)
                seen.update(granted(fleet, crew.group))
                return seen == dict.fromkeys(range(PARTITIONS), lock_ms)

            eventually(lambda: all_have(LOCK_MS), 60.0, "locks of all partitions")
            fleet.made("c").launch()
            with admin_at(fleet, "b") as admin:
                changed = {"share.record.lock.duration.ms": str(NEW_LOCK_MS)}
                admin.alter_group_configs(crew.group, changed)
            eventually(lambda: all_have(NEW_LOCK_MS), 60.0, "the new duration at all owners")
            fleet.owned_by(crew.group, "a", "b", "c")


def granted(fleet: FleetScene, group: str) -> dict[int, int]:
    """By partition: how long the lock of its last record in flight was given for."""
    rows = fleet.sql(
        "SELECT DISTINCT ON (p.partition_index) p.partition_index, f.granted_ms FROM in_flight f "
        f"JOIN share_partition p ON p.id = f.partition_id WHERE p.group_id = '{group}' "
        f"AND f.state = {RecordState.ACQUIRED:d} ORDER BY p.partition_index, f.first_offset DESC"
    )
    return dict(rows)
