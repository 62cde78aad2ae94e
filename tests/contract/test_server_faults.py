"""Servers behind a network that cuts and stalls, and servers that refuse: what the store says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest

from sharecoord.core.changes import payload_parts
from sharecoord.devenv.databases import connect, is_postgres
from sharecoord.errors import (
    InternalError,
    InvalidConfigError,
    StoreInUseError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.store.dialects.mysql import STATEMENT_BYTES, WRITTEN_BYTES, MySqlDialect
from sharecoord.store.dialects.postgres import PostgresDialect
from sharecoord.store.hot import commit as commit_queries
from sharecoord.store.sql_store import SqlStore
from tests.contract.proxy import Proxy
from tests.contract.store_worlds import (
    ServerWorld,
    change_of,
    claim_partition,
    claimed,
    commit,
    head_of,
    key_of,
    letter_of,
    long_commit,
    ranges,
    row_of,
)
from tests.support import eventually


@pytest.fixture
def proxy(server_world: ServerWorld) -> Iterator[Proxy]:
    with Proxy(server_world.url) as made:
        yield made


def opened(world: ServerWorld, url: str, name: str = "one", *, fleet: bool = True) -> SqlStore:
    store = world.make(fleet=fleet, url=url)
    store.open(coordinator_id=name, cluster_id="kafka-1", address=f"{name}:7070", version="0.1.0")
    return store


# -- the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [False, True])
def test_a_cut_at_commit_is_of_unknown_outcome_and_a_claim_finds_the_truth(
    server_world: ServerWorld, proxy: Proxy, answered: bool
) -> None:
    store = opened(server_world, proxy.url)
    loaded = claimed(store)
    commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    proxy.cut_at(b"COMMIT", answered=answered)
    with pytest.raises(StoreOutcomeUnknownError, match="its outcome is not known"):
        commit(store, change_of(loaded, deleted=[0], upserted=[row_of(5, 9)]))
    assert proxy.cuts == 1
    again = claim_partition(store, loaded.row.partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert again.in_flight == (row_of(5, 9) if answered else row_of(0, 4),)
    assert commit(store, change_of(loaded)) == {loaded.row.partition_id}
    assert commit(store, change_of(again, upserted=[row_of(20, 24)])) == frozenset()


def test_a_cut_at_a_statement_changed_nothing(server_world: ServerWorld, proxy: Proxy) -> None:
    store = opened(server_world, proxy.url)
    loaded = claimed(store)
    change = change_of(loaded, upserted=[row_of(0, 4)])
    commit(store, change_of(loaded))
    for answered in (False, True):
        proxy.cut_at(b"in_flight", answered=answered)
        with pytest.raises(StoreUnavailableError, match="connection is lost") as caught:
            store.read_in_flight(loaded.row.partition_id, from_offset=0, max_rows=5)
        assert type(caught.value) is StoreUnavailableError
    proxy.cut()
    with pytest.raises(StoreUnavailableError, match="connection is lost") as caught:
        commit(store, change)
    assert type(caught.value) is StoreUnavailableError
    assert commit(store, change) == frozenset()
    assert ranges(store, loaded.row.partition_id) == [row_of(0, 4)]


def test_a_network_that_swallows_everything_is_noticed(
    server_world: ServerWorld, proxy: Proxy
) -> None:
    store = opened(server_world, proxy.url)
    loaded = claimed(store)
    commit(store, change_of(loaded))
    proxy.stall()
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    assert type(caught.value) is StoreUnavailableError
    # A connection that is made anew waits for its own time limit.
    with pytest.raises(StoreUnavailableError):
        store.list_partitions("group")
    assert time.monotonic() - begun < 30
    proxy.go_on()
    again = eventually(
        lambda: claim_partition(
            store, loaded.row.partition_id, incarnation=2, previous_incarnation=1
        )
    )
    assert again.in_flight == ()


def test_a_standalone_store_keeps_its_place_over_a_broken_network(
    server_world: ServerWorld, proxy: Proxy
) -> None:
    store = opened(server_world, proxy.url, fleet=False)
    proxy.cut()
    # The server may still hold the locks of the sessions that were cut: they are ended.
    eventually(lambda: store.renew_lease(duration_ms=4000))
    with pytest.raises(StoreInUseError, match="coordinator one at one:7070"):
        opened(server_world, server_world.url, "two", fleet=False)


def test_who_lost_its_place_to_another_process_is_told(server_world: ServerWorld) -> None:
    with Proxy(server_world.url) as proxy:
        first = opened(server_world, proxy.url, fleet=False)
        first.renew_lease(duration_ms=60_000)
        proxy.stall()
        proxy.cut()
        # The same id, as two processes of one configuration have it.
        second = opened(server_world, server_world.url, fleet=False)
        proxy.go_on()
        for _ in range(2):
            with pytest.raises(StoreInUseError, match="coordinator one"):
                first.renew_lease(duration_ms=4000)
        second.renew_lease(duration_ms=4000)


def test_standalone_and_fleet_keep_each_other_out(server_world: ServerWorld) -> None:
    member = opened(server_world, server_world.url, "member")
    with pytest.raises(StoreInUseError, match="in use by coordinator member at member:7070"):
        opened(server_world, server_world.url, "alone", fleet=False)
    with pytest.raises(StoreInUseError, match=r"coordinator\.id"):
        opened(server_world, server_world.url, "member")
    member.close()
    opened(server_world, server_world.url, "alone", fleet=False)
    with pytest.raises(StoreInUseError, match="in standalone mode"):
        opened(server_world, server_world.url, "member")


def test_many_open_an_empty_database_at_once(server_world: ServerWorld) -> None:
    problems: list[BaseException] = []

    def run(name: str) -> None:
        try:
            opened(server_world, server_world.url, name).ensure_group(name)
        except BaseException as error:  # noqa: BLE001 - shown below
            problems.append(error)

    threads = [threading.Thread(target=run, args=(f"c{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(server_world.stores[0].load_groups()) == 4


# -- locks ----------------------------------------------------------------------------------------


def test_a_row_that_a_tool_holds_is_waited_for_a_while(server_world: ServerWorld) -> None:
    store = server_world.open()
    loaded = claimed(store)
    change = change_of(loaded, upserted=[row_of(0, 4)])
    lock = f"SELECT 1 FROM share_partition WHERE id = {loaded.row.partition_id} FOR UPDATE"
    with closing(connect(server_world.url)) as tool, tool.cursor() as cursor:
        cursor.execute("START TRANSACTION")
        cursor.execute(lock)
        with pytest.raises(StoreUnavailableError, match="for too long") as caught:
            commit(store, change)
        assert type(caught.value) is StoreUnavailableError
        # Reads go on, of what was committed.
        assert ranges(store, loaded.row.partition_id) == []
        cursor.execute("ROLLBACK")
    assert commit(store, change) == frozenset()


def test_rows_of_a_process_that_stands_still_come_free(server_world: ServerWorld) -> None:
    """Stopped within a transaction, it keeps its connection: only the server can end that."""
    store = server_world.open()
    loaded = claimed(store)
    dialect = server_world.dialects[id(server_world.make(standstill_ms=3_000))]
    lock = f"SELECT 1 FROM share_partition WHERE id = {loaded.row.partition_id} FOR UPDATE"
    fairy = dialect.make_engine().raw_connection()
    still: Any = fairy.driver_connection
    fairy.detach()
    with still.cursor() as cursor:
        cursor.execute(lock)
        change = change_of(loaded, upserted=[row_of(0, 4)])
        with pytest.raises(StoreUnavailableError, match="for too long"):
            commit(store, change)
        assert eventually(lambda: [commit(store, change)], 20.0, "it comes free") == [frozenset()]
        with pytest.raises(dialect.driver_errors):
            cursor.execute(lock)
    with suppress(*dialect.driver_errors):
        still.close()


def test_a_commit_that_stands_still_holds_nothing_for_ever(
    server_world: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between its statements: the next owner has the rows within seconds."""
    still, other = server_world.make(standstill_ms=3_000), server_world.open()
    still.open(coordinator_id="still", cluster_id="", address="still:1", version="0.1.0")
    loaded = claimed(still)
    locked, goes_on = threading.Event(), threading.Event()
    write = commit_queries.write_partitions

    def stand_still(*given: Any) -> None:
        if not locked.is_set():
            locked.set()
            goes_on.wait()
        write(*given)

    monkeypatch.setattr(commit_queries, "write_partitions", stand_still)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(commit, still, change_of(loaded, upserted=[row_of(0, 4)]))
        try:
            assert locked.wait(20.0)
            server_world.time_ms += 60_000  # its lease has ended
            taken = eventually(lambda: claimed(other), 20.0, "it comes free")
        finally:
            goes_on.set()
        with pytest.raises(StoreUnavailableError):
            late.result()
    assert taken.row.owner_epoch == loaded.row.owner_epoch + 1
    assert ranges(other, loaded.row.partition_id) == []


def test_a_statement_over_many_rows_that_stands_still_holds_none_for_ever(
    server_world: ServerWorld,
) -> None:
    """A process that is frozen between two rows of an `executemany`, by which claims are made."""
    store = server_world.open()
    loaded = [claimed(store, key_of(number)) for number in range(3)]
    dialect = server_world.dialects[id(server_world.make(standstill_ms=3_000))]
    thawed = threading.Event()

    def rows() -> Iterator[tuple[int]]:
        yield (loaded[0].row.partition_id,)
        yield (loaded[1].row.partition_id,)
        thawed.wait()
        yield (loaded[2].row.partition_id,)

    def freeze() -> None:
        fairy = dialect.make_engine().raw_connection()
        still: Any = fairy.driver_connection
        fairy.detach()
        try:
            with still.cursor() as cursor:
                cursor.executemany(
                    "UPDATE share_partition SET closed = closed WHERE id = %s", rows()
                )
                still.commit()
        finally:
            still.close()

    change = change_of(loaded[0], upserted=[row_of(0, 4)])

    def is_refused() -> bool:
        with suppress(StoreUnavailableError):
            commit(store, change)
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(freeze)
        try:
            eventually(is_refused, 20.0, "the row is locked")
            eventually(lambda: not is_refused(), 20.0, "it comes free")
        finally:
            thawed.set()
        assert isinstance(late.exception(), dialect.driver_errors)


def test_a_deadlock_is_made_again(server_world: ServerWorld) -> None:
    store = server_world.make(lock_timeout_ms=20_000)
    store.open(coordinator_id="one", cluster_id="", address="one:1", version="0.1.0")
    first, second = claimed(store, key_of(0)), claimed(store, key_of(1))
    lock = "SELECT 1 FROM share_partition WHERE id = {} FOR UPDATE"
    waits = threading.Event()

    def cross() -> None:
        """Holds the second row and asks for the first, while the commit has it the other way."""
        with closing(connect(server_world.url)) as tool, tool.cursor() as cursor:
            cursor.execute("START TRANSACTION")
            cursor.execute(lock.format(second.row.partition_id))
            waits.set()
            try:
                # A moment later the commit has locked the first; whoever is the victim, the
                # commit succeeds in the end.
                cursor.execute("SELECT " + ("pg_sleep(0.3)" if pg else "SLEEP(0.3)"))
                cursor.execute(lock.format(first.row.partition_id))
            except Exception as error:  # noqa: BLE001 - the tool may be the victim
                said.append(str(error))

    pg = is_postgres(server_world.url)
    said: list[str] = []
    thread = threading.Thread(target=cross)
    thread.start()
    waits.wait()
    changes = [change_of(each, upserted=[row_of(0, 4)]) for each in (first, second)]
    assert commit(store, *changes) == frozenset()
    thread.join()
    assert all("deadlock" in text.lower() for text in said)
    for each in (first, second):
        assert ranges(store, each.row.partition_id) == [row_of(0, 4)]


# -- what does not work is said at open -----------------------------------------------------------


def test_wrong_password_and_database_are_named(server_world: ServerWorld) -> None:
    wrong = server_world.url.replace(":for-tests@", ":wrong@")
    assert wrong != server_world.url, "only with the servers that the tests have started"
    with pytest.raises(InvalidConfigError, match="user or password") as caught:
        opened(server_world, wrong)
    assert ":wrong@" not in caught.value.message
    location, _, query = server_world.url.partition("?")
    missing = f"{location.rpartition('/')[0]}/no_such_database{'?' if query else ''}{query}"
    with pytest.raises(InvalidConfigError, match="database does not exist"):
        opened(server_world, missing)


def test_a_server_that_is_not_there_is_unavailable(server_world: ServerWorld) -> None:
    with Proxy(server_world.url) as gone:
        url = gone.url
    with pytest.raises(StoreUnavailableError, match="is the server up"):
        opened(server_world, url)


def test_a_database_of_another_program_is_left_alone(server_world: ServerWorld) -> None:
    server_world.sql("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(Exception, match=r"another program.*invoices"):
        server_world.open()
    server_world.sql("DROP TABLE invoices")
    server_world.open()


def test_names_differ_by_their_bytes(server_world: ServerWorld) -> None:
    store = server_world.open()
    names = ["group", "Group", "group ", "gröup", "gro\u0308up", "\uf000", "nul\0", " group"]
    for number, name in enumerate(names):
        loaded = claimed(store, key_of(group=name))
        commit(store, change_of(loaded, head=head_of(number, number)))
        store.ensure_group(name)
    assert [group.group_id for group in store.load_groups()] == sorted(names)
    for number, name in enumerate(names):
        (row,) = store.list_partitions(name)
        assert (row.key, row.head) == (key_of(group=name), head_of(number, number))


def test_long_values_fit(server_world: ServerWorld) -> None:
    store = server_world.open()
    loaded = claimed(store, key_of(group="g" * 255, topic="t" * 249))
    row = row_of(0, 99_999)._replace(key_hashes=b"\x01" * 800_000, reason="é" * 100_000)
    commit(store, change_of(loaded, upserted=[row]))
    assert ranges(store, loaded.row.partition_id) == [row]


def test_the_real_clock_is_the_servers(server_world: ServerWorld) -> None:
    store = server_world.open()
    real = PostgresDialect if is_postgres(server_world.url) else MySqlDialect
    with store._opened().read() as connection:
        now_ms = real.now_ms(server_world.dialects[id(store)], connection)  # type: ignore[arg-type]
    assert abs(now_ms - time.time() * 1000) < 60_000


@pytest.mark.parametrize("fleet", [False, True])
def test_a_lease_is_renewed_while_a_commit_runs(
    server_world: ServerWorld, monkeypatch: pytest.MonkeyPatch, fleet: bool
) -> None:
    store = opened(server_world, server_world.url, fleet=fleet)
    loaded = claimed(store)
    before_ms = store.renew_lease(duration_ms=4000)
    with long_commit(store, change_of(loaded, upserted=[row_of(0, 4)]), monkeypatch):
        assert store.renew_lease(duration_ms=60_000) >= before_ms
        assert store.renew_lease(duration_ms=60_000) >= before_ms
    assert ranges(store, loaded.row.partition_id) == [row_of(0, 4)]


def test_what_fits_is_taken_and_what_does_not_is_refused(mariadb_world: ServerWorld) -> None:
    store = opened(mariadb_world, mariadb_world.url)
    loaded = claimed(store)
    with store._opened().read() as connection:
        packet = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
    largest = (packet - STATEMENT_BYTES) // WRITTEN_BYTES
    for extra, fits in ((-10, True), (2 * STATEMENT_BYTES, False)):
        letter = letter_of(0, value=b"'" * (largest + extra))
        assert store.fits(payload_parts(letter)) == fits
        change = replace(change_of(loaded), dead_letters=[letter])
        if fits:
            assert commit(store, change) == frozenset()
        else:
            # The server may hang up before it says why: as if all changes of a batch were to blame.
            with pytest.raises((InternalError, StoreUnavailableError)):
                commit(store, change)
