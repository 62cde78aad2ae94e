"""Workers at the Kafka port: unmodified share consumers, librdkafka's and Kafka's own of Java.

`python -m tests.acceptance.chaos.kafka_worker` runs until SIGTERM, and writes what the SDK's worker
writes. With `--java` the consumer lives in a process of its own, which ends with this one.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import confluent_kafka

from sharecoord.demo.ledger import LedgerWriter, Outcome, Unanswered, Verb
from tests.acceptance.chaos.records import LockWriter, place_of
from tests.java_members import JavaProgram

POLL_S = 0.2
ACCEPT, RELEASE = 1, 2


class Row:
    """A record that came: its number in ledgers, and its delivery count."""

    def __init__(self, place: int, count: int, message: object) -> None:
        self.place, self.count, self.message = place, count, message


class Consumer(Protocol):
    """What a worker needs of a client."""

    def poll(self) -> list[Row]:
        """The next records; what was said since the poll before goes out."""

    def say(self, row: Row, kind: int) -> None:
        """Notes an acknowledgement, in explicit mode."""

    def commit(self) -> None:
        """Sends what was said, and waits for its outcome."""

    def close(self) -> None:
        """Leaves."""


class Worker:
    """Takes records, works on them, and acknowledges them; which outcomes came it writes down."""

    def __init__(
        self,
        ledger: LedgerWriter,
        locks: LockWriter,
        *,
        is_explicit: bool,
        lock_s: float,
        work_s: float,
        release_each: int,
    ) -> None:
        self._ledger, self._locks = ledger, locks
        self._is_explicit = is_explicit
        self._lock_s, self._work_s = lock_s, work_s
        self._release_each = release_each
        self._unanswered = Unanswered()
        self._stopping = False

    def stop(self) -> None:
        """Ends `run` after the records in hand."""
        self._stopping = True

    def run(self, consumer: Consumer) -> None:
        """Works until `stop`."""
        joined = False
        while not self._stopping:
            # A record that comes now was locked before: its lock is counted from here.
            lock_ends_s = time.monotonic() + self._lock_s
            rows = consumer.poll()
            if rows and not joined:
                joined = True
                self._ledger.write(Verb.JOINED)
            self._locks.write((row.place, row.count, lock_ends_s) for row in rows)
            for row in rows:
                self._ledger.write(Verb.GOT, row.place, row.count)
            self._work_off(consumer, rows)
        self._locks.leaving()
        consumer.commit()
        consumer.close()

    def _work_off(self, consumer: Consumer, rows: Iterable[Row]) -> None:
        for row in rows:
            time.sleep(self._work_s)
            again = self._is_explicit and bool(self._release_each) and row.count == 1
            release = again and row.place % self._release_each == 0
            outcome = Outcome.RELEASE if release else Outcome.ACCEPT
            self._unanswered.said(row.place, row.count, outcome)
            self._ledger.write(Verb.DID, row.place, row.count, outcome)
            if self._is_explicit:
                consumer.say(row, RELEASE if release else ACCEPT)

    def answered(self, places: Iterable[int], *, is_taken: bool) -> None:
        """Hears outcomes of acknowledgements."""
        verb = Verb.CONFIRMED if is_taken else Verb.REFUSED
        for place in sorted(places):
            count, outcome = self._unanswered.answered(place)
            self._ledger.write(verb, place, count, outcome)


class Librdkafka:
    """confluent_kafka's share consumer."""

    def __init__(self, worker: Worker, config: Mapping[str, object], topic: str) -> None:
        self._worker = worker
        self._consumer = confluent_kafka.ShareConsumer(dict(config))
        self._consumer.set_acknowledgement_commit_callback(self._heard)
        self._consumer.subscribe([topic])

    def poll(self) -> list[Row]:
        found = []
        for message in self._consumer.poll(POLL_S):
            if message.error() is None:
                place = place_of(message.partition(), message.offset())
                found.append(Row(place, message.delivery_count(), message))
        return found

    def say(self, row: Row, kind: int) -> None:
        self._consumer.acknowledge(row.message, confluent_kafka.AcknowledgeType(kind))

    def commit(self) -> None:
        self._consumer.commit_sync(10)

    def close(self) -> None:
        self._consumer.close()

    def _heard(self, offsets: Mapping[object, set[int]], error: object) -> None:
        for where, found in offsets.items():
            partition = where.partition  # type: ignore[attr-defined]
            places = [place_of(partition, offset) for offset in found]
            self._worker.answered(places, is_taken=error is None)


class Java:
    """Kafka's own share consumer, in a process of its own."""

    def __init__(
        self, worker: Worker, config: Mapping[str, object], topic: str, classes: Path
    ) -> None:
        self._worker = worker
        self._program = JavaProgram(classes=classes)
        self._consumer = self._program.consumer(str(config["client.id"]), config)
        self._consumer.subscribe(topic)

    def poll(self) -> list[Row]:
        found = [
            Row(place_of(each.partition, each.offset), each.delivery, each)
            for each in self._consumer.poll(POLL_S)
        ]
        self._hear()
        return found

    def say(self, row: Row, kind: int) -> None:
        self._consumer.acknowledge(row.message, kind)  # type: ignore[arg-type]

    def commit(self) -> None:
        self._consumer.commit_sync(10)
        self._hear()

    def close(self) -> None:
        self._consumer.close()
        self._hear()
        self._program.close()

    def _hear(self) -> None:
        """Writes down what the client's callback was told since the last look."""
        heard, self._consumer.heard = self._consumer.heard, []
        for each in heard:
            place = place_of(each.partition, each.offset)
            self._worker.answered([place], is_taken=each.error is None)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.chaos.kafka_worker")
    for name in ("--coordinator", "--group", "--topic", "--member"):
        parser.add_argument(name, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--locks", type=Path, required=True)
    parser.add_argument("--lock-ms", type=int, required=True)
    parser.add_argument("--work-ms", type=float, default=0.0)
    parser.add_argument("--poll-records", type=int, default=50)
    parser.add_argument("--release-each", type=int, default=0)
    parser.add_argument("--implicit", action="store_true")
    parser.add_argument("--java", type=Path, help="the folder with the program's classes")
    options = parser.parse_args(arguments)
    worker = Worker(
        LedgerWriter(options.ledger, options.member),
        LockWriter(options.locks, options.member),
        is_explicit=not options.implicit,
        lock_s=options.lock_ms / 1000,
        work_s=options.work_ms / 1000,
        release_each=options.release_each,
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    config = {
        "bootstrap.servers": options.coordinator,
        "group.id": options.group,
        "client.id": options.member,
        "share.acknowledgement.mode": "implicit" if options.implicit else "explicit",
        "max.poll.records": options.poll_records,
        # Back soon after a restart of the coordinator, whatever the number of tries before.
        "reconnect.backoff.max.ms": 200,
    }
    consumer: Consumer
    if options.java is None:
        consumer = Librdkafka(worker, config, options.topic)
    else:
        consumer = Java(worker, config, options.topic, options.java)
    worker.run(consumer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
