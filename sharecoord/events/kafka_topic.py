"""The event log as a Kafka topic: each message an Arrow stream with some rows of one group."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from sharecoord.eventlog.schema import SCHEMA_VERSION
from sharecoord.events.counts import Counts
from sharecoord.events.schema import BAD_ROWS, SCHEMA, batch_of
from sharecoord.events.spool import BAD_ROWS as BAD_PAYLOAD
from sharecoord.events.spool import Record, records_of
from sharecoord.kafka.client import KafkaException
from sharecoord.kafka.event_producer import EventProducer

MESSAGE_BYTES_MAX: Final = 512 << 10
"""Largest value before compression: half of what brokers and consumers take by default."""

MESSAGE_ROWS_MAX: Final = 1_000
"""Rows that become a message without waiting for more; they nearly always fit."""

LINGER_S: Final = 0.5
"""Time that rows of a group wait for more of them: a message costs 10 kB beside its rows."""

POLL_S: Final = 0.1
"""How often deliveries are asked for while some are under way."""

CLOSE_S: Final = 8.0
"""How long a writer that ends waits for Kafka: less than the coordinator waits for the writer."""

HEADERS: Final = {
    "sharecoord-schema-version": str(SCHEMA_VERSION),
    "content-type": "application/vnd.apache.arrow.stream",
}


class _Waiting:
    """Rows of a group that wait to become a message."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.records: list[Record] = []
        self.rows = 0


class KafkaSink:
    """The `WriterSink` of a topic."""

    def __init__(
        self,
        topic: EventProducer,
        *,
        name: str,
        coordinator_id: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes an open topic, its name for the log, and the id of the rows' coordinator."""
        self.counts = Counts()
        self._topic = topic
        self._name = name
        self._coordinator_id = coordinator_id
        self._now_s = now_s
        self._groups: dict[str, _Waiting] = {}
        self._is_failing = False

    def take(self, payload: bytes) -> None:
        """Takes the blocks of a frame."""
        try:
            records = records_of(payload)
        except BAD_PAYLOAD as error:
            self.counts.bad(payload, self._name, error)
            return
        for record in records:
            group_id = record.key[1]
            waiting = self._groups.setdefault(group_id, _Waiting(self._now_s()))
            waiting.records.append(record)
            waiting.rows += record.rows
            self.counts.newest_us = record.time_us
            if waiting.rows >= MESSAGE_ROWS_MAX:
                self._send_group(group_id)

    def work(self) -> None:
        """Sends the rows that have waited long enough; hears of deliveries."""
        due_s = self._now_s() - LINGER_S
        for group_id in [g for g, waiting in self._groups.items() if waiting.since_s <= due_s]:
            self._send_group(group_id)
        self._topic.poll(0)
        self._say_lost()

    def wait_s(self) -> float | None:
        """Seconds until the first group is due, or until deliveries are asked for."""
        if self._topic.waiting:
            return POLL_S
        if not self._groups:
            return None
        first_s = min(waiting.since_s for waiting in self._groups.values())
        return max(0.0, first_s + LINGER_S - self._now_s())

    def _say_lost(self) -> None:
        """Sends the row that tells of lost rows, once Kafka takes messages again."""
        if self.counts.unsaid and not self._is_failing:
            unsaid, lost_row = self.counts.unsaid, self.counts.lost_row()
            self.counts.unsaid = 0
            self._send("", batch_of(lost_row, self._coordinator_id), 0, unsaid)

    def _send_group(self, group_id: str) -> None:
        self._send_records(group_id, self._groups.pop(group_id).records)

    def _send_records(self, group_id: str, records: list[Record]) -> None:
        """Sends rows as messages; when some do not fit the schema, record by record."""
        rows = sum(record.rows for record in records)
        try:
            batch = batch_of(
                (block for record in records for block in record.blocks()), self._coordinator_id
            )
        except BAD_ROWS as error:
            if len(records) > 1:
                for record in records:
                    self._send_records(group_id, [record])
                return
            self.counts.settled += rows
            self.counts.missing(rows, records[0].unsaid, self._name, error)
            return
        self._send(group_id, batch, rows, sum(record.unsaid for record in records))

    def _send(self, group_id: str, batch: pa.RecordBatch, rows: int, unsaid: int) -> None:
        """Sends a batch as one message, or as several when it is too large for one.

        Args:
            group_id: The key.
            batch: The rows.
            rows: How many of the rows came through the pipe.
            unsaid: Rows that are missing if the message is lost.
        """
        value = stream_of(batch)
        if len(value) > MESSAGE_BYTES_MAX and batch.num_rows > 1:
            half = batch.num_rows // 2
            more = unsaid - rows  # said by rows of kind `lost`, which are few and small
            self._send(group_id, batch.slice(0, half), half, half)
            self._send(group_id, batch.slice(half), rows - half, rows - half + more)
            return

        def done(problem: str) -> None:
            self._done(rows, unsaid, problem)

        if len(value) > MESSAGE_BYTES_MAX:
            done(f"a row of {len(value)} bytes is larger than a message of {MESSAGE_BYTES_MAX}")
            return
        try:
            while not self._topic.produce(group_id, value, HEADERS, done):
                self._topic.poll(POLL_S)
        except KafkaException as error:
            if error.args[0].fatal():
                raise  # this client takes nothing any more; another process does
            done(str(error.args[0]))

    def _done(self, rows: int, unsaid: int, problem: str) -> None:
        """Counts rows whose message was delivered, or was not."""
        self.counts.settled += rows
        self._is_failing = bool(problem)
        if problem:
            self.counts.missing(rows, unsaid, self._name, problem)
        else:
            self.counts.written += rows

    def close(self) -> None:
        """Sends the rows that wait, and waits for Kafka."""
        for group_id in list(self._groups):
            self._send_group(group_id)
        self._topic.flush(CLOSE_S)


def stream_of(batch: pa.RecordBatch) -> bytes:
    """A message's value: an Arrow IPC stream with one record batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
