"""Kafka's share consumers at the Kafka port, with each supported release of Kafka behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from tests.differential.kafka_offsets import share_group_offsets
from tests.differential.members import (
    ACCEPT,
    JAVA,
    NATIVE,
    REJECT,
    RELEASE,
    Member,
    Place,
    Seen,
)
from tests.differential.sides import OurSide, PortSide, join
from tests.support import PatientTopics, eventually, unique_name

WAIT_S = 60.0
RECORDS = 500
START_S = 600.0
"""The jars of a release may have to be fetched first."""

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(START_S)]


@dataclass
class Desk:
    """A coordinator with a Kafka port, in front of one release of Kafka."""

    port: str
    address: str
    topics: Topics


@pytest.fixture(
    scope="module",
    params=["3.9.1", *(pytest.param(v, marks=pytest.mark.long) for v in ("2.8.2", "4.3.1"))],
)
def desk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    port = f"{LOOPBACK}:{free_ports(1)[0]}"
    settings = {"kafka.port.listen": port, "security.audit.sink": "off"}
    folder = tmp_path_factory.mktemp("coordinator")
    with (
        KafkaBroker(request.param) as broker,
        CoordinatorProcess(broker.bootstrap_servers, folder, settings=settings) as process,
    ):
        yield Desk(port, process.address, PatientTopics(broker.bootstrap_servers))


def kind_of(seen: Seen) -> int:
    """One in ten is released once, one in ten is rejected."""
    if seen.delivery == 1 and seen.offset % 10 == 3:
        return RELEASE
    return REJECT if seen.offset % 10 == 7 else ACCEPT


def worked_off(members: list[Member], due: set[Place]) -> Counter[tuple[Place, int]]:
    """What members get, until everything is done."""
    found: Counter[tuple[Place, int]] = Counter()
    again = {place for place in due if place[1] % 10 == 3}

    def done() -> bool:
        for member in members:
            for seen in member.poll(0.2):
                found[seen.place, seen.delivery] += 1
                member.acknowledge(seen.place, kind_of(seen))
        return sum(found.values()) >= len(due) + len(again)

    eventually(done, WAIT_S, what=f"{len(due)} records and {len(again)} of them again")
    for member in members:
        assert set(member.commit().values()) <= {None}
    return found


@pytest.mark.parametrize(
    "module",
    [
        NATIVE,
        pytest.param(f"{JAVA}4.2.1", marks=pytest.mark.long),
        f"{JAVA}4.3.1",
        f"{JAVA}4.4.0",
    ],
)
def test_members_share_what_is_there(desk: Desk, module: str) -> None:
    name, group = unique_name("t"), unique_name("g")
    desk.topics.create(name, partitions=2)
    for partition in (0, 1):
        desk.topics.produce(name, RECORDS, partition=partition, compression="lz4")
    side = PortSide(desk.port, OurSide(desk.address), module)
    side.configure(group, {"share.isolation.level": "read_committed"})
    members = [join(side, group, f"m{n}", name, partitions=2) for n in range(2)]
    due = {(partition, offset) for partition in (0, 1) for offset in range(RECORDS)}
    found = worked_off(members, due)
    again = {place for place in due if place[1] % 10 == 3}
    assert found == Counter([*((place, 1) for place in due), *((place, 2) for place in again)])
    # What is aborted is nobody's.
    desk.topics.produce_transaction(name, 10, commit=False)
    desk.topics.produce_transaction(name, 10, commit=True)
    committed = {(0, offset) for offset in range(RECORDS + 11, RECORDS + 21)}
    assert {place for place, _ in worked_off(members, committed)} == committed
    for member in members:
        member.close()
    ends = {(name, 0): (RECORDS + 22, 0), (name, 1): (RECORDS, 0)}
    eventually(lambda: share_group_offsets(desk.port, group) == ends, WAIT_S, what="no lag")
    desk.topics.delete(name)
