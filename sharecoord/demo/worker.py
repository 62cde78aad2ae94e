"""A worker of the demo: a process of its own that knows nothing but the SDK.

`python -m sharecoord.demo.worker` runs until SIGTERM. Everything it does goes into its ledger
first, so that the demo can tell afterwards what happened, whoever was killed.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from sharecoord_sdk import AcknowledgeType, KafkaException, Message, ShareConsumer, TopicPartition

from sharecoord.demo.ledger import LedgerWriter, Outcome, Unanswered, Verb
from sharecoord.demo.plan import POLL_RECORDS_MAX, POSTPONE_MS, RETRY_DELAY_MS, Kind, Order

POLL_S = 0.2


class Worker:
    """Takes records, works on them, and acknowledges them."""

    def __init__(self, consumer: ShareConsumer, ledger: LedgerWriter) -> None:
        self._consumer = consumer
        self._ledger = ledger
        self._stopping = False
        self._unanswered = Unanswered()
        consumer.set_acknowledgement_commit_callback(self._answered)

    def stop(self) -> None:
        """Ends `run` after the records in hand."""
        self._stopping = True

    def run(self, topic: str) -> None:
        """Works until `stop`."""
        self._consumer.subscribe([topic])
        joined = False
        while not self._stopping:
            messages = self._consumer.poll(POLL_S).records()
            if not joined and self._consumer.acquisition_lock_timeout_ms() is not None:
                joined = True
                self._ledger.write(Verb.JOINED)
            for message in messages:
                offset, count = _place(message)
                self._ledger.write(Verb.GOT, offset, count)
            for message in messages:
                self._handle(message)

    def _handle(self, message: Message) -> None:
        offset, count = _place(message)
        order = Order.decode(message.value())
        time.sleep(order.work_ms / 1000)
        outcome, delay_ms = verdict_on(order, count)
        self._unanswered.said(offset, count, outcome)
        self._ledger.write(Verb.DID, offset, count, outcome)
        if outcome is Outcome.ACCEPT:
            self._consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        elif outcome is Outcome.REJECT:
            self._consumer.acknowledge(
                message, AcknowledgeType.REJECT, reason="the order can not be read"
            )
        else:
            self._consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=delay_ms)

    def _answered(
        self, answered: dict[TopicPartition, set[int]], error: KafkaException | None
    ) -> None:
        verb = Verb.CONFIRMED if error is None else Verb.REFUSED
        for offsets in answered.values():
            for offset in sorted(offsets):
                count, outcome = self._unanswered.answered(offset)
                self._ledger.write(verb, offset, count, outcome)


def verdict_on(order: Order, count: int) -> tuple[Outcome, int]:
    """The acknowledgement of a record at its `count`-th delivery, and the delay in milliseconds."""
    if order.kind is Kind.BROKEN:
        return Outcome.REJECT, 0
    if order.kind is Kind.POSTPONED and count == 1:
        return Outcome.RELEASE, POSTPONE_MS
    if order.kind is Kind.POISON or count <= order.failures:
        return Outcome.RELEASE, RETRY_DELAY_MS
    return Outcome.ACCEPT, 0


def _place(message: Message) -> tuple[int, int]:
    offset, count = message.offset(), message.delivery_count()
    assert offset is not None, "a delivered record has an offset"
    assert count is not None, "a delivered record has a delivery count"
    return offset, count


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sharecoord.demo.worker")
    for name in ("--coordinator", "--group", "--topic", "--member"):
        parser.add_argument(name, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    options = parser.parse_args(arguments)
    config = {
        "bootstrap.servers": options.coordinator,
        "group.id": options.group,
        "client.id": options.member,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": POLL_RECORDS_MAX,
        # Back soon after the restart of the coordinator, whatever the number of tries before.
        "reconnect.backoff.max.ms": 200,
    }
    ledger = LedgerWriter(options.ledger, options.member)
    with ShareConsumer(config) as consumer:
        worker = Worker(consumer, ledger)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run(options.topic)
    ledger.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
