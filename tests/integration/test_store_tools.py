"""`sharecoord store` on real servers and beside real coordinators."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sharecoord_sdk import AcknowledgeType, Message, ShareConsumer
from sqlalchemy import Table

from sharecoord.core.changes import CommitBatch
from sharecoord.core.dispatch.pauses import Pause, PauseScope
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from sharecoord.errors import InvalidRequestError, StoreInUseError, StoreUnavailableError
from sharecoord.store.tables import HEAD_REVISION
from sharecoord.store.tools import backup_file
from sharecoord.store.tools.raw_rows import Row
from sharecoord.store.tools.tools import StoreTools
from tests.acceptance.bad_input import one_error, run_cli
from tests.conftest import TopicFactory
from tests.contract.conftest import SERVERS
from tests.contract.store_process import change_number
from tests.contract.store_worlds import (
    ServerWorld,
    SqliteWorld,
    World,
    change_of,
    claim_partition,
    claimed,
    commit,
    key_of,
    letter_of,
    open_partition,
    row_of,
)
from tests.support import KafkaUnderTest, eventually, unique_name
from tests.unit.store.backups import access_of, filled, restored_state, rows_of

STRANGE = "\0 \uf000 'ü\"\\ 😀 \n\u2028"
"""What some database might not keep as it is."""


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[ServerWorld]:
    """An empty space on each server."""
    made = ServerWorld(request.getfixturevalue(request.param).url)
    yield made
    made.close()


def tools_of(world: World) -> StoreTools:
    """As the command line makes them."""
    url = world.url if isinstance(world, ServerWorld) else f"sqlite:///{sqlite_path(world)}"
    return StoreTools(url, lock_timeout_ms=2000)


def sqlite_path(world: World) -> Path:
    assert isinstance(world, SqliteWorld)
    return world.path


# -- servers --------------------------------------------------------------------------------------


def test_a_state_goes_through_every_database(server: ServerWorld, tmp_path: Path) -> None:
    """SQLite to a server, and back to SQLite: every byte comes along."""
    first = SqliteWorld(tmp_path / "first.db")
    store, loaded = filled(first)
    rows = [
        row_of(20 + i, 20 + i, state=0)._replace(reason=STRANGE, key_hashes=b"\0\xff" * 4)
        for i in range(120)
    ]
    letters = [letter_of(20, value=bytes(range(256)) * 1000), letter_of(21, value=None)]
    commit(store, change_of(loaded, upserted=rows, dead_letters=letters))
    store.ensure_group("Gruppe ä")
    store.change_pauses("Gruppe ä", pause=[Pause(PauseScope("orders", 0), 7, "operator", "größer")])
    store.ensure_group("gruppe ä")
    first.close()
    start = rows_of(tools_of(first).access)

    tools_of(first).backup(tmp_path / "1.gz", replace=False)
    tools_of(server).restore(tmp_path / "1.gz", replace=False, other_cluster=False)
    assert rows_of(tools_of(server).access) == restored_state(start)
    tools_of(server).backup(tmp_path / "2.gz", replace=False)
    last = tmp_path / "last.db"
    StoreTools(f"sqlite:///{last}", lock_timeout_ms=100).restore(
        tmp_path / "2.gz", replace=False, other_cluster=False
    )
    assert rows_of(access_of(last)) == restored_state(restored_state(start))
    # And the server goes on behind the ids that it was given.
    handle = server.open("next")
    taken = open_partition(handle, key_of(0))
    assert claimed(handle, key_of(5)).row.partition_id > taken.partition_id
    assert claim_partition(handle, taken.partition_id, incarnation=7, previous_incarnation=None)
    assert tools_of(server).check().facts.cluster_id == "kafka-1"


def test_a_backup_of_a_server_under_commits_is_one_state(
    server: ServerWorld, tmp_path: Path
) -> None:
    store = server.open()
    loaded = [claimed(store, key_of(number)) for number in range(3)]
    stop = threading.Event()
    done: list[int] = []

    def storm() -> None:
        while not stop.is_set():
            done.append(len(done) + 1)
            store.commit(CommitBatch([change_number(part, done[-1]) for part in loaded]))

    thread = threading.Thread(target=storm)
    thread.start()
    tools, seen = tools_of(server), []
    try:
        for index in range(4):
            tools.backup(tmp_path / f"{index}.gz", replace=False)
            # The suite's tokens are of an epoch that was never claimed; all else has to fit.
            problems = [found.problem for found in tools.check().findings]
            assert [text for text in problems if "lock token" not in text] == []
    finally:
        stop.set()
        thread.join()
    for index in range(4):
        path = tmp_path / f"{index}.db"
        access = access_of(path)
        StoreTools(f"sqlite:///{path}", lock_timeout_ms=100).restore(
            tmp_path / f"{index}.gz", replace=False, other_cluster=False
        )
        state = rows_of(access)
        (number,) = {row[9] for row in state["share_partition"]}
        firsts = {row[1] for row in state["in_flight"]}
        assert firsts == ({number * 100 + i for i in range(8)} if number else set())
        assert len(state["in_flight"]) == (24 if number else 0)
        seen.append(number)
    assert seen == sorted(seen)
    assert done


def test_a_server_with_a_coordinator_is_left_alone(server: ServerWorld, tmp_path: Path) -> None:
    """One that is alone, and one of a fleet; after kill -9 nobody waits for a lease."""
    store, _ = filled(server)
    tools = tools_of(server)
    tools.backup(tmp_path / "b.gz", replace=False)
    before = rows_of(tools.access)
    with pytest.raises(StoreInUseError, match=r"in use by coordinator one at one:7070"):
        tools.restore(tmp_path / "b.gz", replace=True, other_cluster=False)
    with pytest.raises(StoreInUseError, match="Stop all coordinators first"):
        tools.migrate()
    server.crash(store)
    alone = server.open("two", fleet=False)
    with pytest.raises(StoreInUseError, match="coordinator two"):
        tools.restore(tmp_path / "b.gz", replace=True, other_cluster=False)
    assert rows_of(tools.access)["share_partition"] == before["share_partition"]
    server.crash(alone)
    assert tools.migrate() == (HEAD_REVISION, HEAD_REVISION)
    tools.restore(tmp_path / "b.gz", replace=True, other_cluster=False)
    assert rows_of(tools.access) == restored_state(before)


def test_a_restore_that_a_server_refuses_changes_nothing(
    server: ServerWorld, tmp_path: Path
) -> None:
    filled(server)
    server.stores[0].close()
    tools = tools_of(server)
    tools.backup(tmp_path / "b.gz", replace=False)
    short = "ALTER TABLE member ADD CONSTRAINT short CHECK (client_id = 'x')"
    server.sql("DELETE FROM member", short)
    before = rows_of(tools.access)
    with pytest.raises(InvalidRequestError, match="rows 1 to 1 of member do not go into this"):
        tools.restore(tmp_path / "b.gz", replace=True, other_cluster=False)
    assert rows_of(tools.access) == before


def test_a_backup_that_ends_in_the_middle_leaves_the_server_well(
    server: ServerWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows on their way; the next backup finds nothing odd."""
    store, loaded = filled(server)
    commit(store, change_of(loaded, upserted=[row_of(50 + i, 50 + i) for i in range(500)]))
    whole = backup_file.to_json

    def full_disk(table: Table, row: Row) -> str:
        if table.name == "in_flight" and row[1] == 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(table, row)

    tools = tools_of(server)
    with monkeypatch.context() as patch:
        patch.setattr(backup_file, "to_json", full_disk)
        with pytest.raises(StoreUnavailableError, match="No space left on device; nothing was"):
            tools.backup(tmp_path / "b.gz", replace=False)
    assert [*tmp_path.iterdir()] == []
    assert tools.backup(tmp_path / "b.gz", replace=False).rows["in_flight"] == 502


# -- beside a coordinator -------------------------------------------------------------------------


def test_a_restored_store_serves_on(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    """Accepted before the backup: never again. All others: again, and under new locks only."""
    name, file = topic(), tmp_path / "b.gz"
    topics.produce(name, 50)
    process = CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path)
    config = {
        "bootstrap.servers": process.address,
        "group.id": unique_name("g"),
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 100,
    }
    url = f"sqlite:///{process.store_path}"
    with process, ShareConsumer(config) as consumer:
        consumer.subscribe([name])
        assert all_taken(consumer, 50) == [*range(50)]
        assert run_cli("store", "backup", str(file), "--store", url).exit_code == 0
        topics.produce(name, 250)
        accept(consumer, taken(consumer))
        held = taken(consumer)
        checked = run_cli("store", "check", "--store", url, "-o", "json")
        assert (checked.exit_code, json.loads(checked.out)) == (0, []), checked.out
        refused = run_cli("store", "restore", str(file), "--store", url, "--force")
        assert "is in use by pid" in one_error(refused.err)

        process.kill()
        done = run_cli("store", "restore", str(file), "--store", url, "--force")
        assert done.exit_code == 0, done.err
        assert run_cli("store", "check", "--store", url).exit_code == 0
        process.restart()
        # The locks of what was taken after the backup are dead, though the worker has them still.
        for message in held:
            consumer.acknowledge(message)
        (error,) = consumer.commit_sync(30).values()
        assert error is not None
        assert all_taken(consumer, 250) == [*range(50, 300)]


def all_taken(consumer: ShareConsumer, count: int) -> list[int]:
    """Takes and accepts so many records; their offsets in order."""
    offsets: list[int] = []
    while len(offsets) < count:
        some = taken(consumer)
        accept(consumer, some)
        offsets += [message.offset() for message in some]
    return sorted(offsets)


def taken(consumer: ShareConsumer) -> list[Message]:
    """The next records, at most 100."""
    return [*eventually(lambda: consumer.poll(0.2), 40, "records")]


def accept(consumer: ShareConsumer, messages: list[Message]) -> None:
    """Confirmed when this returns."""
    for message in messages:
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
    assert set(consumer.commit_sync(30).values()) == {None}
