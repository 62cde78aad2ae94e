"""Settings of a test broker, and its property files."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.processes import LOOPBACK

ZOOKEEPER_SESSION_MS = 6000

TEST_SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    # A broker that comes back after kill -9 is let in when the session of its predecessor has
    # expired: after 9 s by default.
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "2000",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
    # One broker: every internal topic has one replica. Few partitions, because they are created
    # while the first client that needs them waits.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # Tests give records timestamps of their own, and retention by time would delete old ones;
    # what a test wants deleted, compacted or expired it says in the topic's configuration.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    # 128 MiB by default, a quarter of the heap.
    "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
}
"""Settings that every broker of this package is started with, unless the caller overrides them."""

FAST_SHARE_GROUPS: Mapping[str, str] = {
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.record.lock.duration.ms": "1000",
}
"""For tests, not for benchmarks: members learn their partitions with a heartbeat, by default every
5 s, so the first record of the first share group comes after 3.7 s instead of 6.2 s; and locks may
be as short as 1 s instead of 15 s."""

_LOG4J_1 = """\
log4j.rootLogger=WARN, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_LOG4J_2 = """\
rootLogger.level=WARN
rootLogger.appenderRef.stdout.ref=stdout
appender.stdout.type=Console
appender.stdout.name=stdout
appender.stdout.layout.type=PatternLayout
appender.stdout.layout.pattern=[%d] %p %m (%c)%n
"""
LOGGING = (
    ("log4j.properties", "log4j.configuration", _LOG4J_1),
    ("log4j2.properties", "log4j2.configurationFile", _LOG4J_2),
)
"""File, system property that names it, text: warnings and errors go to the console."""


def checked_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The caller's settings over `TEST_SETTINGS`; DevenvError for one that can not be set."""
    for name, value in settings.items():
        if name in RESERVED:
            raise DevenvError(
                f"settings: {name} is set by the broker's ports and data_dir; drop it"
            )
        if not isinstance(value, str):
            raise DevenvError(f"settings: {name} must be a string as in a file, not {value!r}")
        if "\n" in name + value or not name.strip():
            raise DevenvError(f"settings: {name!r} has a line break in it or no name; remove it")
    return {**TEST_SETTINGS, **settings}


def kraft_settings(port: int, controller_port: int, log_dir: Path) -> dict[str, str]:
    """Settings of a process that is broker and controller at once."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(log_dir),
    }


def joining_settings(node_id: int, port: int, controllers: str, log_dir: Path) -> dict[str, str]:
    """Settings of a further broker; `controllers`: the first one's `controller.quorum.voters`."""
    return {
        "process.roles": "broker",
        "node.id": str(node_id),
        "controller.quorum.voters": controllers,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(log_dir),
    }


def zookeeper_broker_settings(port: int, zookeeper_port: int, log_dir: Path) -> dict[str, str]:
    """Settings of a broker whose metadata is in ZooKeeper."""
    return {
        "broker.id": "1",
        "zookeeper.connect": f"{LOOPBACK}:{zookeeper_port}",
        "zookeeper.session.timeout.ms": str(ZOOKEEPER_SESSION_MS),
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "log.dirs": str(log_dir),
    }


RESERVED = frozenset(
    {
        "log.dir",
        *kraft_settings(0, 0, Path()),
        *zookeeper_broker_settings(0, 0, Path()),
    }
)
"""Settings that follow from the broker's ports and directory."""


def zookeeper_settings(port: int, data_dir: Path) -> dict[str, str]:
    """Settings of the ZooKeeper server itself."""
    return {
        "dataDir": str(data_dir),
        "clientPort": str(port),
        "clientPortAddress": LOOPBACK,
        "tickTime": "500",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
    }


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """Writes a Java property file; a backslash, which Java reads as an escape, is doubled."""
    lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items()]
    path.write_text("".join(lines), encoding="utf-8")


def new_cluster_id() -> str:
    """A cluster id as Kafka makes them: 16 random bytes, 22 characters of base64 for URLs.

    Never with a leading dash, which the storage tool would read as an option.
    """
    while True:
        text = secrets.token_urlsafe(16)
        if not text.startswith("-"):
            return text
