"""Bad input to processes: each gets one line that names the thing and the fix, and loses nothing.

Settings, addresses, ports and stores are here, what workers send in `test_bad_calls.py`.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sharecoord_sdk import KafkaError, KafkaException, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from sharecoord.store.tables import HEAD_REVISION
from tests.acceptance.bad_input import refusal_of, refused, run_cli
from tests.support import KafkaUnderTest, eventually, poll_until, unique_name

TopicFactory = Callable[..., str]
NOWHERE = f"{LOOPBACK}:1"
"""Nobody listens there; what is refused before Kafka is asked needs no broker."""


def consume(address: str, topic: str, group: str, count: int) -> list[int]:
    """Offsets of the first `count` records that a new member of the group gets; it accepts them."""
    config = {"bootstrap.servers": address, "group.id": group}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        found = poll_until(consumer, count, 40)
        assert set(consumer.commit_sync(20).values()) <= {None}
    return [message.offset() or 0 for message in found]


# -- names of settings and their bounds -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("store:\n  ur: x\n", ['settings.yaml:2: unknown setting "store.ur"', '"store.url"']),
        ("listen.adress: x\n", ['settings.yaml:1: unknown setting "listen.adress"', "address"]),
        (
            "group:\n  share.delivery.count.limt: 3\n",
            ["settings.yaml:2", '"group.share.delivery.count.limit"'],
        ),
        ("limits:\n  request.max.bytes: 0\n", ["settings.yaml:2", "request.max.bytes", "128KiB"]),
        ("commit.pending.max.bytes: -5\n", ["settings.yaml:1", "commit.pending.max.bytes", "-5"]),
        ("group.share.delivery.count.limit: 0\n", ["share.delivery.count.limit", "between 1 and"]),
        ("group.share.record.lock.duration.ms: -1\n", ["lock.duration.ms", "between"]),
        ("limits: [1\n", ["settings.yaml:", "not valid YAML"]),
    ],
)
def test_a_wrong_setting_in_yaml_is_named_with_its_line(
    tmp_path: Path, text: str, named: list[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    error = refused("serve", "--config", str(file))
    assert [part for part in named if part not in error] == [], error


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("lisen.address=x", ["--lisen.address", 'Did you mean "listen.address"']),
        ("limits.request.max.bytes=-1", ["limits.request.max.bytes", "between 128KiB and 256MiB"]),
        ("group.share.delivery.count.limit=0", ["share.delivery.count.limit", "between 1 and"]),
        ("group.share.group.max.size=0", ["share.group.max.size", "between 1 and"]),
        ("group.share.max.record.locks=5", ['"group.share.partition.max.record.locks"']),
        pytest.param(
            "listen.address=127.0.0.1:99999",
            ["listen.address", "0 (any free one) to 65535"],
        ),
        pytest.param(
            "store.url=sqlit:///x.db",
            ["store.url", "sqlite"],
        ),
        ("kafka.bootstrap.server=x:1", ["bootstrap.server", 'Did you mean "bootstrap.servers"']),
        ("kafka.fetch.wait.max.ms=-7", ["kafka.fetch.wait.max.ms", "-7", "0 to 300000"]),
        ("kafka.enable.auto.commit=true", ["enable.auto.commit", "Remove it"]),
    ],
)
def test_a_wrong_setting_in_a_flag_is_named(tmp_path: Path, setting: str, named: list[str]) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    flags = ["--kafka", NOWHERE] if not setting.startswith("kafka.bootstrap") else []
    stores = ["--store", store] if not setting.startswith("store.") else []
    error = refused("serve", *flags, *stores, "--set", setting)
    assert [part for part in named if part not in error] == [], error
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--lisen", "x"], ["--lisen", "--listen"]),
        (["--processes", "0"], ["--processes", "x>=1"]),
        (["--set", "log.level"], ["--set log.level", "NAME=VALUE"]),
        (["--log-level", "loud"], ["--log-level", "debug"]),
    ],
)
def test_a_wrong_flag_is_wrong_usage(flags: list[str], named: list[str]) -> None:
    done = run_cli("serve", *flags)
    assert done.exit_code == 2
    assert [part for part in named if part not in done.err] == [], done.err


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("SHARECOORD_STORE__UR", "x", ["SHARECOORD_STORE__UR", '"SHARECOORD_STORE__URL"']),
        ("SHARECOORD_STOR_URL", "x", ["SHARECOORD_STOR_URL", '"SHARECOORD_STORE__URL"']),
        ("SHARECOORD_LIMITS__REQUEST_MAX_BYTES", "0", ["REQUEST_MAX_BYTES", "between 128KiB"]),
        ("SHARECOORD_GROUP__SHARE_DELIVERY_COUNT_LIMIT", "-1", ["COUNT_LIMIT", "between 1 and"]),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, named: list[str]) -> None:
    error = refused("serve", "--kafka", NOWHERE, environ={name: value})
    assert [part for part in named if part not in error] == [], error


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"max.poll.records": 0}, ["max.poll.records", "1.."]),
        ({"max.poll.records": -5}, ["max.poll.records", "-5", "1.."]),
        ({"max.poll.interval.ms": 0}, ["max.poll.interval.ms", "1.."]),
        ({"max.pol.records": 5}, ["max.pol.records", "did you mean max.poll.records"]),
        ({"share.acknowledgement.mode": "maybe"}, ["acknowledgement.mode", "implicit, explicit"]),
        ({"bootstrap.servers": "host:99999"}, ["bootstrap.servers", "host:port"]),
        ({"sharecoord.buffer.records": 0}, ["sharecoord.buffer.records", "1.."]),
    ],
)
def test_a_wrong_key_of_the_sdk_is_named(config: dict[str, object], named: list[str]) -> None:
    with pytest.raises(KafkaException) as caught:
        ShareConsumer({"bootstrap.servers": NOWHERE, "group.id": "g", **config})
    error = caught.value.args[0]
    assert error.code() == KafkaError._INVALID_ARG
    assert [part for part in named if part not in error.str()] == [], error


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("share.delivery.count.limit=0", ["share.delivery.count.limit", "between 1 and 1000"]),
        ("share.partition.max.record.locks=-1", ["max.record.locks", "between 100 and"]),
        ("share.record.lock.duration.ms=999", ["lock.duration.ms", "between 1s and 12h"]),
        ("share.delivery.count.limt=3", ['unknown setting "share.delivery.count.limt"', "limit"]),
        ("share.ordering=random", ["share.ordering", "unordered"]),
    ],
)
def test_a_wrong_setting_of_a_group_is_named_and_changes_nothing(
    coordinator: CoordinatorProcess, setting: str, named: list[str]
) -> None:
    group = unique_name("g")
    entity = ("--bootstrap-server", coordinator.address, "--entity-type", "groups")
    command = ("configs", *entity, "--entity-name", group)
    # A good setting beside it must not be taken either.
    error = refused(
        *command, "--alter", "--add-config", f"share.heartbeat.interval.ms=6000,{setting}"
    )
    assert [part for part in named if part not in error] == [], error
    assert group not in run_cli("groups", *entity[:2], "--list").out


# -- addresses ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unanswered(
    coordinator: CoordinatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """What is said of addresses without Kafka; they are waited for together, ten seconds each."""
    wrong = (NOWHERE, coordinator.address)
    made = {at: CoordinatorProcess(at, tmp_path_factory.mktemp("unanswered")) for at in wrong}
    with ThreadPoolExecutor() as pool:
        yield {at: pool.submit(refusal_of, process) for at, process in made.items()}


def test_a_closed_port_of_kafka_ends_the_start(unanswered: dict[str, Future[str]]) -> None:
    error = unanswered[NOWHERE].result()
    assert f"no answer from Kafka at {NOWHERE}: " in error
    assert "Connection refused" in error
    assert "--kafka" in error


def test_a_coordinator_is_not_a_broker(
    coordinator: CoordinatorProcess, unanswered: dict[str, Future[str]]
) -> None:
    error = unanswered[coordinator.address].result()
    assert f"no answer from Kafka at {coordinator.address}: " in error
    assert "not a coordinator's" in error


def test_a_broker_is_not_a_coordinator(kafka_broker: KafkaUnderTest) -> None:
    address = kafka_broker.bootstrap_servers.split(",")[0]
    error = refused("groups", "--bootstrap-server", address, "--list")
    assert f"{address} is a Kafka broker, not a sharecoord coordinator" in error
    assert "--listen" in error


def test_nobody_answers_the_command_line() -> None:
    done = run_cli("groups", "--bootstrap-server", NOWHERE, "--list")
    assert done.exit_code == 3
    assert done.err.startswith(f"sharecoord: error: no coordinator answers at {NOWHERE}")
    assert "sharecoord serve" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("at", "what", "fix"),
    [
        ("broker", "hangs up", "Is this a Kafka broker?"),
        ("closed port", "nothing listens there", "Start the coordinator (`sharecoord serve`)"),
    ],
)
def test_a_worker_at_the_wrong_address_is_told(
    kafka_broker: KafkaUnderTest, at: str, what: str, fix: str
) -> None:
    address = NOWHERE if at == "closed port" else kafka_broker.bootstrap_servers.split(",")[0]
    errors: list[KafkaError] = []
    config = {
        "bootstrap.servers": address,
        "group.id": "g",
        "socket.connection.setup.timeout.ms": 1000,
        "error_cb": errors.append,
    }
    with ShareConsumer(config) as consumer:
        consumer.subscribe(["orders"])
        eventually(lambda: consumer.poll(0.1) or errors, 20, "error_cb")
        start = time.monotonic()
    assert time.monotonic() - start < 10, "close does not wait for what can not come"
    assert errors[0].code() == KafkaError._TRANSPORT
    assert f"{address}: no coordinator has answered there" in errors[0].str()
    assert what in errors[0].str()
    assert fix in errors[0].str()


def test_a_taken_port_is_named(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((LOOPBACK, free_ports(1)[0]))
        other.listen()
        address = f"{LOOPBACK}:{other.getsockname()[1]}"
        settings = {"listen.address": address}
        error = refusal_of(
            CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path, settings=settings)
        )
    assert f"listen.address: can not listen on {address}: Address already in use" in error
    assert "port 0 = any free one" in error


def test_a_taken_socket_file_is_not_taken_over(
    kafka_broker: KafkaUnderTest, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path / 's'}"
    settings = {"listen.address": address}
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    second.mkdir()
    with CoordinatorProcess(kafka_broker.bootstrap_servers, first, settings=settings):
        error = refusal_of(
            CoordinatorProcess(kafka_broker.bootstrap_servers, second, settings=settings)
        )
        assert f"can not listen on {address}: another process serves there" in error
        assert run_cli("groups", "--bootstrap-server", address, "--list").exit_code == 0


# -- stores ---------------------------------------------------------------------------------------


def test_a_second_coordinator_on_one_file_is_refused_and_disturbs_nothing(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 20)
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path / "1") as first:
        seen = consume(first.address, name, group, 20)
        settings = {"store.url": f"sqlite:///{first.store_path}"}
        second = CoordinatorProcess(
            kafka_broker.bootstrap_servers, tmp_path / "2", settings=settings
        )
        error = refusal_of(second)
        assert f"{first.store_path} is in use by pid {first.pid}" in error
        assert "another --store" in error
        topics.produce(name, 5)
        seen += consume(first.address, name, group, 5)
    assert seen == list(range(25))


@pytest.fixture
def used_store(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> tuple[CoordinatorProcess, str, str]:
    """A stopped coordinator whose store holds a group that has finished ten records of a topic."""
    name, group = topic(), unique_name("g")
    topics.produce(name, 20)
    process = CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path)
    with process:
        consume(process.address, name, group, 20)
    (tmp_path / "coordinator.log").unlink()
    return process, name, group


def rows(path: Path) -> list[str]:
    """Everything that the store holds, as SQL."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return list(db.iterdump())


def change(path: Path, sql: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(sql)
    db.close()


def test_a_store_of_a_newer_release_is_left_alone(
    used_store: tuple[CoordinatorProcess, str, str], topics: Topics
) -> None:
    process, name, group = used_store
    path = process.store_path
    change(path, "update store_meta set value = '9.9.9' where name = 'release'")
    change(path, "update alembic_version set version_num = '9999'")
    before = rows(path)
    error = refusal_of(process)
    assert f"store {path} has schema 9999, written by sharecoord 9.9.9" in error
    assert "Run the version that wrote it, or a newer one" in error
    assert rows(path) == before
    # The right release goes on where it stopped.
    change(path, f"update alembic_version set version_num = '{HEAD_REVISION}'")
    topics.produce(name, 1)
    with process:
        assert consume(process.address, name, group, 1) == [20]


def test_a_store_of_another_cluster_is_left_alone(
    used_store: tuple[CoordinatorProcess, str, str], topics: Topics, tmp_path: Path
) -> None:
    process, name, group = used_store
    before = rows(process.store_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with MockCluster() as cluster:
        settings = {"store.url": f"sqlite:///{process.store_path}"}
        error = refusal_of(
            CoordinatorProcess(cluster.bootstrap_servers, elsewhere, settings=settings)
        )
    assert f"store {process.store_path} holds the share groups of Kafka cluster" in error
    assert "another --store" in error
    assert rows(process.store_path) == before
    topics.produce(name, 1)
    with process:
        assert consume(process.address, name, group, 1) == [20]


@pytest.mark.parametrize("damage", ["header", "pages", "no database"])
def test_a_damaged_store_is_left_alone(
    used_store: tuple[CoordinatorProcess, str, str], damage: str
) -> None:
    process, _, _ = used_store
    path = process.store_path
    whole = path.read_bytes()
    garbage = b"\xff" * 64
    broken = {
        "header": garbage + whole[64:],
        # The root of the schema keeps its magic and loses its content.
        "pages": whole[:100] + b"\xff" * (len(whole) - 100),
        "no database": b"name,value\n" * 1000,
    }[damage]
    path.write_bytes(broken)
    error = refusal_of(process)
    assert f"{path}: the file is damaged" in error
    assert ".recover" in error
    assert path.read_bytes() == broken


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "store.db"
    change(theirs, "create table notes (text)")
    before = rows(theirs)
    with MockCluster() as cluster:
        error = refusal_of(CoordinatorProcess(cluster.bootstrap_servers, tmp_path))
    assert f"store {theirs} is a database of another program (it has the table notes)" in error
    assert "--store" in error
    assert rows(theirs) == before


def test_a_store_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    settings = {"store.url": f"sqlite:///{tmp_path}/file/store.db"}
    with MockCluster() as cluster:
        error = refusal_of(
            CoordinatorProcess(cluster.bootstrap_servers, tmp_path, settings=settings)
        )
    assert f"{tmp_path}/file" in error


# -- topics ---------------------------------------------------------------------------------------


def test_an_unknown_topic_is_named_and_served_once_it_exists(
    coordinator: CoordinatorProcess, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique_name("later")
    config = {"bootstrap.servers": coordinator.address, "group.id": unique_name("g")}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([name])
        told = f"topics that do not exist (yet): {name}"
        eventually(lambda: consumer.poll(0.1) or told in caplog.text, 20, "the warning")
        topics.create(name)
        try:
            topics.produce(name, 3)
            assert [m.offset() for m in poll_until(consumer, 3)] == [0, 1, 2]
        finally:
            topics.delete(name)


def test_a_topic_that_was_re_created_while_away_starts_at_zero(
    used_store: tuple[CoordinatorProcess, str, str], topics: Topics
) -> None:
    process, name, group = used_store
    topics.delete(name)
    topics.create(name)
    topics.produce(name, 7)
    with process:
        assert consume(process.address, name, group, 7) == list(range(7))


@pytest.mark.parametrize("records", [7, 40])
def test_a_topic_that_is_re_created_under_a_running_coordinator_starts_at_zero(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics, records: int
) -> None:
    """With fewer records than the old position, and with more of them."""
    name, group = topic(), unique_name("g")
    topics.produce(name, [(None, b"old %d" % i, []) for i in range(20)])
    config = {"bootstrap.servers": coordinator.address, "group.id": group}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([name])
        poll_until(consumer, 20)
        assert set(consumer.commit_sync(20).values()) == {None}
        topics.delete(name)
        topics.create(name)
        wanted = {(i, b"new %d" % i) for i in range(records)}
        topics.produce(name, [(None, b"new %d" % i, []) for i in range(records)])
        seen: set[tuple[int | None, bytes]] = set()

        def all_came() -> bool:
            seen.update((m.offset(), m.value()) for m in consumer.poll(0.2))
            return seen >= wanted

        eventually(all_came, 60, "every record of the second topic")
        assert set(consumer.commit_sync(20).values()) <= {None}
    assert seen == wanted


def test_what_was_learnt_of_a_store_survives_its_copy(
    used_store: tuple[CoordinatorProcess, str, str], topics: Topics, tmp_path: Path
) -> None:
    """The fix that the error of a damaged store names: a backup, put in its place."""
    process, name, group = used_store
    path = process.store_path
    backup = tmp_path / "backup.db"
    shutil.copy(path, backup)
    path.write_bytes(b"\xff" * 8192)
    assert "damaged" in refusal_of(process)
    shutil.copy(backup, path)
    topics.produce(name, 1)
    with process:
        assert consume(process.address, name, group, 1) == [20]
