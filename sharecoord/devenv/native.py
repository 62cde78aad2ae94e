"""Kafka's own share groups (4.2 and newer), the peer of tests and benchmarks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from sharecoord.devenv.topics import DEFAULT_TIMEOUT_S, Topics, kafka_error
from sharecoord.errors import KafkaUnavailableError

MARKER_BYTES = 10
POLL_S = 0.05


def set_group_config(
    bootstrap_servers: str,
    group: str,
    settings: Mapping[str, str],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> None:
    """Sets settings of a share group, such as `share.auto.offset.reset`.

    The group need not exist. Other settings of the group stay as they are.

    Args:
        bootstrap_servers: `host:port`, several with commas between them.
        group: The group's name.
        settings: Kafka's names (`share.*`) and values.
        timeout_s: Bound of the call.

    Raises:
        KafkaUnavailableError: No answer in time.
        DevenvError: Kafka refused a setting; the message has its reason.
    """
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    # `client` must live until its futures are done: they are cancelled with it.
    futures = client.incremental_alter_configs([resource], request_timeout=timeout_s)
    what = f"set {', '.join(settings)} of share group {group}"
    try:
        for future in futures.values():
            future.result(timeout_s + 1.0)
    except KafkaException as error:
        raise kafka_error(what, error) from error
    except TimeoutError as error:
        raise KafkaUnavailableError(f"{what}: no answer in time") from error


def open_share_consumer(
    bootstrap_servers: str,
    group: str,
    topics: Sequence[str],
    *,
    explicit: bool,
    config: Mapping[str, str | int | float | bool] | None = None,
) -> ShareConsumer:
    """A subscribed member of a share group; the caller closes it.

    Args:
        bootstrap_servers: `host:port`, several with commas between them.
        group: The group's name.
        topics: What to subscribe to.
        explicit: Whether every record is acknowledged by a call of its own.
        config: Further settings of the client.
    """
    base: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap_servers,
        "group.id": group,
        "log_level": 0,
        "share.acknowledgement.mode": "explicit" if explicit else "implicit",
    }
    consumer = ShareConsumer(base | dict(config or {}))
    consumer.subscribe(list(topics))
    return consumer


def warm_up(
    bootstrap_servers: str,
    topic: str,
    consumers: Sequence[ShareConsumer],
    *,
    explicit: bool,
    partition: int = 0,
    deadline_s: float = DEFAULT_TIMEOUT_S,
) -> int:
    """Makes every member of a share group ready, so that a clock can be started.

    A group's first record takes one or two heartbeats (5 s by default), and no call of the client
    tells when a member has its partitions. So markers are produced, and every consumer is polled
    in turn until each has been given at least one; all that were given are accepted, and the
    markers that are left over are worked off. The start offset of the group does not matter: new
    markers are produced until one arrives.

    Args:
        bootstrap_servers: `host:port`, several with commas between them.
        topic: A topic that all the consumers are subscribed to; nothing of worth should be due
            in it, because what arrives is accepted.
        consumers: Subscribed members of one group, opened in the same mode.
        explicit: Their acknowledgement mode.
        partition: Where the markers go.
        deadline_s: How long to try.

    Returns:
        How many records were accepted.

    Raises:
        KafkaUnavailableError: A member was given nothing within `deadline_s`.
    """
    tool = Topics(bootstrap_servers)
    deadline = time.monotonic() + deadline_s
    waiting = set(range(len(consumers)))
    accepted = 0
    while waiting:
        if time.monotonic() > deadline:
            raise KafkaUnavailableError(
                f"{len(waiting)} of {len(consumers)} members were given nothing from {topic} "
                f"within {deadline_s:.0f} s: are they subscribed to it, and in the same group?"
            )
        # One record a batch: a batch would go to one member as a whole.
        tool.produce(
            topic,
            len(waiting),
            value_bytes=MARKER_BYTES,
            partition=partition,
            one_record_batches=True,
        )
        for number, consumer in enumerate(consumers):
            count = _accept(consumer, explicit=explicit)
            accepted += count
            if count:
                waiting.discard(number)
    return accepted + _drain(consumers, explicit=explicit)


def _drain(consumers: Sequence[ShareConsumer], *, explicit: bool) -> int:
    """Accepts until one whole round of polls brings nothing; commits what is accepted."""
    accepted = 0
    while True:
        count = sum(_accept(consumer, explicit=explicit) for consumer in consumers)
        accepted += count
        if count == 0:
            return accepted


def _accept(consumer: ShareConsumer, *, explicit: bool) -> int:
    """One short poll whose records are accepted and committed; how many there were."""
    records: list[Any] = [each for each in consumer.poll(POLL_S) if each.error() is None]
    if not records:
        return 0
    if explicit:
        for record in records:
            consumer.acknowledge(record)
    consumer.commit_sync()
    return len(records)
