"""A worker of the fault tests: a process of its own that knows nothing but the SDK.

`python -m tests.acceptance.chaos.worker` runs until SIGTERM. What it gets and does goes into its
ledger first, so that the verdict does not depend on anybody who was killed.
"""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest import mock

from sharecoord_sdk import AcknowledgeType, KafkaException, Message, ShareConsumer, TopicPartition

from sharecoord.demo.ledger import LedgerWriter, Outcome, Verb
from sharecoord.demo.worker import Worker as DemoWorker
from tests.acceptance.chaos.records import LockWriter, place_of

POLL_S = 0.1


class Worker(DemoWorker):
    """The demo's, which releases some records at their first delivery and notes its locks."""

    def __init__(
        self,
        consumer: ShareConsumer,
        ledger: LedgerWriter,
        locks: LockWriter,
        *,
        work_s: float,
        release_each: int,
        commit_each: bool,
    ) -> None:
        super().__init__(consumer, ledger)
        self._locks = locks
        self._work_s = work_s
        self._release_each = release_each
        self._commit_each = commit_each

    def run(self, topic: str) -> None:
        """Works until `stop`; what is left in hand then goes back with the departure."""
        self._consumer.subscribe([topic])
        joined = False
        while not self._stopping:
            messages = self._consumer.poll(POLL_S).records()
            if not joined and self._consumer.acquisition_lock_timeout_ms() is not None:
                joined = True
                self._ledger.write(Verb.JOINED)
            self._locks.write((*_place(message), _deadline_s(message)) for message in messages)
            for message in messages:
                self._ledger.write(Verb.GOT, *_place(message))
            self._work_off(messages)
        self._locks.leaving()

    def _work_off(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self._stopping:
                break
            time.sleep(self._work_s)
            self._handle(message)
            if self._commit_each:
                self._consumer.commit_async()
        self._consumer.commit_async()

    def _handle(self, message: Message) -> None:
        offset, count = _place(message)
        release = bool(self._release_each) and offset % self._release_each == 0 and count == 1
        outcome = Outcome.RELEASE if release else Outcome.ACCEPT
        self._unanswered.said(offset, count, outcome)
        self._ledger.write(Verb.DID, offset, count, outcome)
        kind = AcknowledgeType.RELEASE if release else AcknowledgeType.ACCEPT
        self._consumer.acknowledge(message, kind)

    def _answered(
        self, answered: dict[TopicPartition, set[int]], error: KafkaException | None
    ) -> None:
        verb = Verb.CONFIRMED if error is None else Verb.REFUSED
        for where, offsets in answered.items():
            for offset in sorted(offsets):
                place = place_of(where.partition, offset)
                count, outcome = self._unanswered.answered(place)
                self._ledger.write(verb, place, count, outcome)


def _place(message: Message) -> tuple[int, int]:
    """The record's number in ledgers, and its delivery count."""
    partition, offset, count = message.partition(), message.offset(), message.delivery_count()
    assert partition is not None, "a delivered record has a partition"
    assert offset is not None, "a delivered record has an offset"
    assert count is not None, "a delivered record has a delivery count"
    return place_of(partition, offset), count


def _deadline_s(message: Message) -> float:
    """When the SDK holds the lock for ended; nothing public says it per record."""
    source, row = message._source, message._row
    (lock,) = [lock for lock in source.locks if lock.start <= row < lock.stop]  # type: ignore[attr-defined]
    return float(lock.deadline)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.chaos.worker")
    for name in ("--coordinator", "--group", "--topic", "--member"):
        parser.add_argument(name, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--locks", type=Path, required=True)
    parser.add_argument("--work-ms", type=float, default=0.0)
    parser.add_argument("--poll-records", type=int, default=50)
    parser.add_argument("--release-each", type=int, default=0)
    parser.add_argument("--commit-each", action="store_true")
    options = parser.parse_args(arguments)
    config = {
        "bootstrap.servers": options.coordinator,
        "group.id": options.group,
        "client.id": options.member,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": options.poll_records,
        # Back soon after a restart of the coordinator, whatever the number of tries before.
        "reconnect.backoff.max.ms": 200,
        # A departure while nobody answers must not take the default minute.
        "socket.timeout.ms": 3_000,
    }
    ledger = LedgerWriter(options.ledger, options.member)
    locks = LockWriter(options.locks, options.member)
    # Tests say where each worker begins; a consumer would choose by chance.
    with mock.patch.object(random, "random", return_value=0.0):
        made = ShareConsumer(config)
    with made as consumer:
        worker = Worker(
            consumer,
            ledger,
            locks,
            work_s=options.work_ms / 1000,
            release_each=options.release_each,
            commit_each=options.commit_each,
        )
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run(options.topic)
    ledger.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
