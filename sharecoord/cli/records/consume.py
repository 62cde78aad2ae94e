"""`sharecoord consume`: the flags of Kafka's kafka-console-share-consumer."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sharecoord.cli.failures import EXIT_INTERRUPTED, Failure
from sharecoord.cli.options import (
    FILE,
    Connection,
    Services,
    connection_options,
    parse_pair,
)
from sharecoord.cli.output import note
from sharecoord.cli.records.formatter import FormatError, Formatter, make_formatter
from sharecoord.config.kafka_keys import is_secret_kafka_key

if TYPE_CHECKING:
    from sharecoord_sdk import Message, ShareConsumer
    from sharecoord_sdk.admin import AdminClient

POLL_S: Final = 0.5
"""Longest wait of one poll; --timeout-ms may be exceeded by as much."""

COMMIT_S: Final = 10.0
"""Longest wait for the last acknowledgements."""

_START_WORDS: Final = {
    "latest": "at the end: records that come from now on",
    "earliest": "at the first record",
}


@click.command()
@connection_options
@click.option("--topic", required=True, help="The topic to consume.")
@click.option("--group", default="share", show_default=True, help="The share group.")
@click.option("--max-messages", type=click.IntRange(1), help="Stop after so many records.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(0),
    help="Stop when no record came for so long, in milliseconds.",
)
@click.option(
    "--property",
    "--formatter-property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="What to print (repeatable): print.key, print.offset, print.partition, print.timestamp, "
    "print.delivery, print.headers, print.value=true|false, key.separator=…, line.separator=…, "
    "headers.separator=…, null.literal=…, key.deserializer, value.deserializer, "
    "headers.deserializer=string|integer|long|short.",
)
@click.option("--reject", is_flag=True, help="Reject every record after it was printed.")
@click.option("--release", is_flag=True, help="Release every record after it was printed.")
@click.option(
    "--reject-message-on-error",
    is_flag=True,
    help="Reject a record that can not be printed, instead of stopping.",
)
@click.option(
    "--consumer-property",
    "--command-property",
    "consumer_properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the consumer (repeatable).",
)
@click.option(
    "--consumer.config", "consumer_config", type=FILE, help="Kafka's older --command-config."
)
@click.pass_context
def consume(
    ctx: click.Context,
    connection: Connection,
    topic: str,
    group: str,
    max_messages: int | None,
    timeout_ms: int | None,
    properties: tuple[str, ...],
    reject: bool,  # noqa: FBT001 - Click calls by name
    release: bool,  # noqa: FBT001
    reject_message_on_error: bool,  # noqa: FBT001
    consumer_properties: tuple[str, ...],
    consumer_config: Path | None,
) -> None:
    """Print the records of a topic as a member of a share group, and accept them.

    The flags are those of Kafka's kafka-console-share-consumer.sh; --bootstrap-server is the
    coordinator.
    """
    if reject and release:
        raise click.UsageError("--reject and --release exclude each other.")
    formatter = make_formatter(properties)
    settings = connection.settings(consumer_config)
    services = ctx.ensure_object(Services)
    with services.make_admin(dict(settings)) as admin:
        tell_start(admin, group, topic)
    own: dict[str, Any] = {
        "client.id": "console-share-consumer",
        **_parse_properties(consumer_properties),
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    if max_messages is not None:
        # One record at a time: none beyond the last one is ever handed out.
        own["max.poll.records"] = 1
    from sharecoord_sdk import AcknowledgeType

    kind = AcknowledgeType.ACCEPT
    if reject or release:
        kind = AcknowledgeType.REJECT if reject else AcknowledgeType.RELEASE
    printer = Printer(formatter, kind, rejects_bad=reject_message_on_error)
    interrupted, problem = False, None
    with services.make_consumer(settings | own) as consumer:
        consumer.subscribe([topic])
        try:
            printer.run(consumer, max_messages, None if timeout_ms is None else timeout_ms / 1000)
        except KeyboardInterrupt:
            interrupted = True
        except Failure as failure:
            problem = failure
        not_taken = _commit(consumer)
        note(f"Processed a total of {printer.count} messages")
    problem = problem or not_taken
    if problem is not None:
        raise problem
    if interrupted:
        ctx.exit(EXIT_INTERRUPTED)


def _parse_properties(texts: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, value = parse_pair("--consumer-property", text)
        if name == "group.id":
            raise click.UsageError("--consumer-property group.id: give --group instead.")
        if is_secret_kafka_key(name):
            seen = "every user of this machine can read it (ps)"
            note(f"sharecoord: --consumer-property {name}: {seen}; write it into --command-config")
        found[name] = value
    return found


@dataclass
class Printer:
    """Prints records and acknowledges each of them with `kind`."""

    formatter: Formatter
    kind: int
    rejects_bad: bool = False
    count: int = 0

    def run(
        self, consumer: ShareConsumer, max_messages: int | None, timeout_s: float | None
    ) -> None:
        """Goes on until `max_messages` were printed, or none came for `timeout_s`."""
        out, last_s = sys.stdout.buffer, time.monotonic()
        while max_messages is None or self.count < max_messages:
            wait_s = POLL_S
            if timeout_s is not None:
                wait_s = max(0.0, min(POLL_S, last_s + timeout_s - time.monotonic()))
            messages = consumer.poll(wait_s)
            for message in messages:
                self._print(consumer, message)
            out.flush()
            if len(messages):
                last_s = time.monotonic()
            elif timeout_s is not None and time.monotonic() - last_s >= timeout_s:
                return

    def _print(self, consumer: ShareConsumer, message: Message) -> None:
        from sharecoord_sdk import AcknowledgeType

        try:
            line = self.formatter.line(message)
        except FormatError as error:
            if not self.rejects_bad:
                raise Failure(f"{error} (--reject-message-on-error goes on)") from None
            note(f"rejected: {error}")
            consumer.acknowledge(message, AcknowledgeType.REJECT)
        else:
            sys.stdout.buffer.write(line)
            consumer.acknowledge(message, self.kind)
        self.count += 1


def _commit(consumer: ShareConsumer) -> Failure | None:
    """Sends the last acknowledgements; returns the first error, if there is one."""
    results = consumer.commit_sync(COMMIT_S)
    failed = [(place, error) for place, error in results.items() if error is not None]
    if not failed:
        return None
    place, error = failed[0]
    why = error.args[0].str()
    return Failure(f"acknowledgements for {place.topic}[{place.partition}] were not taken: {why}")


def tell_start(admin: AdminClient, group: str, topic: str) -> None:
    """Says on stderr where a group that has not read the topic yet begins.

    Nothing is said of `latest` as the default: the consumer itself warns of it, with the fix.
    """
    from sharecoord_sdk.admin import ConfigSource

    (found,) = admin.describe_groups([group], members=False)
    if any(p.topic == topic and p.start_offset is not None for p in found.offsets):
        return
    entries = {entry.name: entry for entry in admin.describe_group_configs(group)}
    reset = entries["share.auto.offset.reset"]
    if reset.value == "latest" and reset.source is not ConfigSource.GROUP:
        return
    where = _START_WORDS.get(reset.value, "by its reset policy")
    note(
        f"group '{group}' is new on topic '{topic}': it starts {where} "
        f"(share.auto.offset.reset={reset.value})"
    )
