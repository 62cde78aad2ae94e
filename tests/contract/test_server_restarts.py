"""Servers of the tests' own that are killed, frozen, made read-only, and run out of space."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sharecoord.core.changes import LoadedPartition
from sharecoord.devenv.databases import (
    MAX_CONNECTIONS,
    DatabaseServer,
    MariaDbServer,
    PostgresServer,
    connect,
    is_postgres,
)
from sharecoord.errors import (
    InvalidConfigError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.store.sql_store import SqlStore
from tests.contract.store_worlds import (
    ServerWorld,
    change_of,
    claim_partition,
    claimed,
    commit,
    letter_of,
    ranges,
    row_of,
)
from tests.databases import MARIADB_PROGRAMS
from tests.support import eventually

TMPFS_MIB = 160


@pytest.fixture(
    scope="module",
    params=[PostgresServer, pytest.param(MariaDbServer, marks=MARIADB_PROGRAMS)],
    ids=["postgresql", "mariadb"],
)
def server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """Up again, with its settings as they were, when a test ends."""
    with request.param() as made:
        yield made


@pytest.fixture
def world(server: DatabaseServer) -> Iterator[ServerWorld]:
    made = ServerWorld(server.url)
    yield made
    made.close()


def succeeds(work: Callable[[], object]) -> None:
    """Waits until a call raises no StoreUnavailableError, and nothing else meanwhile."""

    def probe() -> bool:
        with contextlib.suppress(StoreUnavailableError):
            work()
            return True
        return False

    eventually(probe, 30.0, "the store works again")


def fails(work: Callable[[], object]) -> StoreUnavailableError:
    """Waits until a call raises StoreUnavailableError."""
    found: list[StoreUnavailableError] = []

    def probe() -> bool:
        try:
            work()
        except StoreUnavailableError as error:
            found.append(error)
        return bool(found)

    eventually(probe, 30.0, "the store says that it is away")
    return found[0]


def test_a_server_that_is_killed_loses_nothing_that_was_committed(
    server: DatabaseServer, world: ServerWorld
) -> None:
    store = world.open(fleet=False)
    loaded = claimed(store)
    for base in range(0, 100, 10):
        assert not commit(store, change_of(loaded, upserted=[row_of(base, base + 9)]))
    server.kill()
    for call in (
        lambda: commit(store, change_of(loaded, deleted=[0])),
        lambda: ranges(store, loaded.row.partition_id),
        lambda: store.renew_lease(duration_ms=1000),
    ):
        with pytest.raises(StoreUnavailableError) as caught:
            call()
        assert not isinstance(caught.value, StoreOutcomeUnknownError)
    server.start()
    succeeds(lambda: store.renew_lease(duration_ms=60_000))
    # Nobody else was there: the epoch still holds, and the place is ours again.
    assert len(ranges(store, loaded.row.partition_id)) == 10
    assert commit(store, change_of(loaded, deleted=[0])) == frozenset()
    again = claim_partition(store, loaded.row.partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert [row.first_offset for row in again.in_flight] == list(range(10, 100, 10))


def test_a_frozen_server_is_noticed(server: DatabaseServer, world: ServerWorld) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(store, change_of(loaded))
    server.freeze()
    try:
        with pytest.raises(StoreUnavailableError):
            commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    finally:
        server.thaw()
    found: list[LoadedPartition | None] = []
    succeeds(
        lambda: found.append(
            claim_partition(store, loaded.row.partition_id, incarnation=2, previous_incarnation=1)
        )
    )
    assert found[0] is not None
    assert found[0].in_flight == ()


@contextlib.contextmanager
def setting(world: ServerWorld, name: str, value: str, normal: str) -> Iterator[None]:
    """A setting of the whole server for a while."""

    def change(wanted: str) -> None:
        if is_postgres(world.url):
            # Of this session too, or it could not undo it.
            off = "SET default_transaction_read_only = off"
            world.sql(off, f"ALTER SYSTEM SET {name} = {wanted}", "SELECT pg_reload_conf()")
        else:
            world.sql(f"SET GLOBAL {name} = {wanted}")

    change(value)
    try:
        yield
    finally:
        change(normal)


def limited(world: ServerWorld) -> str:
    """The address with a user who may work in the space and nowhere else."""
    if is_postgres(world.url):
        return world.url
    world.sql(
        "CREATE OR REPLACE USER limited IDENTIFIED BY 'for-tests'",
        f"GRANT ALL ON {world.space}.* TO limited",
    )
    return world.url.replace("//sharecoord:", "//limited:")


def open_at(world: ServerWorld, url: str, name: str = "one") -> SqlStore:
    store = world.make(url=url)
    store.open(coordinator_id=name, cluster_id="", address=f"{name}:1", version="0.1.0")
    return store


def test_a_server_that_takes_no_writes_is_away_until_it_does(world: ServerWorld) -> None:
    url = limited(world)
    store = open_at(world, url)
    loaded = claimed(store)
    change = change_of(loaded, upserted=[row_of(0, 4)])
    postgres = is_postgres(world.url)
    name = "default_transaction_read_only" if postgres else "read_only"
    with setting(world, name, "on" if postgres else "1", "off" if postgres else "0"):
        error = fails(lambda: commit(store, change))
        assert not isinstance(error, StoreOutcomeUnknownError)
        assert "takes no writes" in error.message
        with pytest.raises(InvalidConfigError, match=r"takes no writes.*primary"):
            open_at(world, url, "two")
    succeeds(lambda: commit(store, change))
    assert ranges(store, loaded.row.partition_id) == [row_of(0, 4)]


def test_a_server_that_is_not_durable_is_said_to_be(world: ServerWorld) -> None:
    postgres = is_postgres(world.url)
    name, value, normal = (
        ("fsync", "off", "on") if postgres else ("innodb_flush_log_at_trx_commit", "2", "1")
    )
    with capture_logs() as quiet:
        open_at(world, world.url).close()
    assert quiet == []

    def warnings() -> list[str]:
        with capture_logs() as logs:
            open_at(world, world.url).close()
        return [str(entry["fix"]) for entry in logs if entry["log_level"] == "warning"]

    with setting(world, name, value, normal):
        eventually(lambda: warnings() == [f"{name} = {normal}"])


def test_commit_is_durable_where_the_server_is_lax(
    server: DatabaseServer, world: ServerWorld
) -> None:
    if not isinstance(server, PostgresServer):
        pytest.skip("of PostgreSQL alone; MariaDB's setting is not a session's, see above")
    with setting(world, "synchronous_commit", "off", "on"):
        eventually(lambda: world.sql("SHOW synchronous_commit") == [("off",)])
        store = open_at(world, world.url)
        with store._opened().write() as connection:
            found = connection.exec_driver_sql("SHOW synchronous_commit").scalar()
    assert found == "on"


def test_a_server_without_connections_left_is_away(world: ServerWorld) -> None:
    store = world.open()
    loaded = claimed(store)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Exception):
            for _ in range(2 * MAX_CONNECTIONS):
                stack.enter_context(contextlib.closing(connect(world.url)))
        with pytest.raises(StoreUnavailableError, match="no connection left"):
            claim_partition(store, loaded.row.partition_id, incarnation=2, previous_incarnation=1)
        # What is connected goes on.
        assert commit(store, change_of(loaded, upserted=[row_of(0, 4)])) == frozenset()
    succeeds(lambda: world.sql("SELECT 1") or True)


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of its own, of memory."""
    path.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can make a small file system")
    options = f"size={TMPFS_MIB}m"
    done = subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", path], check=False)
    if done.returncode != 0:
        pytest.skip("this machine does not allow a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_full_disk_loses_nothing_and_space_heals_it(tmp_path: Path) -> None:
    # The server is not root. Some of the folders above are pytest's, for root alone.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.name.startswith(("pytest-", "popen-", tmp_path.name)):
            folder.chmod(0o755)
    disk = tmp_path / "disk"
    with small_disk(disk), PostgresServer(data_dir=disk / "server") as server:
        world = ServerWorld(server.url)
        store = world.open()
        loaded = claimed(store)
        filler = disk / "filler"
        free = shutil.disk_usage(disk).free
        filler.write_bytes(b"\0" * max(0, free - (24 << 20)))
        done: list[int] = []

        def fill() -> None:
            for offset in range(1000):
                letter = letter_of(offset, value=os.urandom(1 << 20))
                commit(store, change_of(loaded, dead_letters=[letter]))
                done.append(offset)

        with pytest.raises(StoreUnavailableError):
            fill()
        assert done, "the first ones found space"
        filler.unlink()
        found: list[LoadedPartition | None] = []
        succeeds(
            lambda: found.append(
                claim_partition(
                    store, loaded.row.partition_id, incarnation=2, previous_incarnation=1
                )
            )
        )
        assert found[0] is not None
        kept = [letter.offset for letter in found[0].dead_letters]
        # The one whose outcome nobody knew may be there, too.
        assert kept in (done, [*done, len(done)])
        assert commit(store, change_of(found[0], dead_letters_done=kept)) == frozenset()
        world.close()
