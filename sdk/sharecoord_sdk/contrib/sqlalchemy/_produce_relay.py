"""`ProduceRelay`: sends what stands in a `ProduceOutbox` to Kafka, each record once, in order."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from ._output_rows import Batch, BatchEnd, OutputRows, OvertakenError
from ._produce_outbox import ProduceOutbox
from ._thread import RelayThread
from ._transactions import OutputTransactions, RefusedError

_log = logging.getLogger("sharecoord_sdk")

#: After an error so long passes, doubled up to the second number.
AGAIN_S: Final = 0.5
AGAIN_MAX_S: Final = 30.0

#: A topic that can not be written to is asked for again after so long, doubled likewise.
HELD_S: Final = 1.0
HELD_MAX_S: Final = 60.0

#: Topics that are held at the same time; beyond that, the one that is due first is tried.
HELD_MAX: Final = 100

#: The time in which `stop` lets the relay send the rows that wait.
DRAIN_S: Final = 5.0


class ProduceReport(NamedTuple):
    """The counts of one run over the outbox, in rows."""

    sent: int
    """Rows that are in their topics, and deleted here; some perhaps sent by a former relay."""
    refused: int
    """Kafka never takes them: they stay, with the error in their row, and others pass them."""
    held: tuple[str, ...] = ()
    """Topics that are not there, or not allowed: their rows wait, in order, until they are."""
    is_standby: bool = False
    """Another relay is at work."""


class _Hold(NamedTuple):
    until_s: float
    wait_s: float


class ProduceRelay(RelayThread):
    """Sends the records of an outbox, in a thread of its own.

    Of several relays of an outbox one is at work; another one takes over when that is gone.

    Args:
        outbox: The table.
        engine: Of the database that it is in; synchronous, also where handlers use asyncio.
        conf: librdkafka's settings: address and credentials of Kafka, compression, and so on.
        transactional_id: The same for all relays of this outbox, and no other's; Kafka keeps the
            marks of what arrived in a consumer group of this name.
        every_s: Time between two looks when nothing waits.
        takeover_s: A relay that gave no sign of life for so long counts as gone.
        rows_max: Records of one transaction.
        bytes_max: Their size; a record that is larger goes alone.
        clock: Seconds since the epoch.

    Raises:
        ImportError: confluent-kafka is not installed.
        InvalidConfigError: librdkafka refuses a setting, or the relay sets it itself.
        ValueError: A time or limit that is not above 0; a transactional id that is no name.
    """

    def __init__(
        self,
        outbox: ProduceOutbox,
        engine: Engine,
        conf: Mapping[str, Any],
        *,
        transactional_id: str,
        every_s: float = 0.2,
        takeover_s: float = 10.0,
        rows_max: int = 1_000,
        bytes_max: int = 8 << 20,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (("every_s", every_s), ("takeover_s", takeover_s)):
            if not value > 0:
                raise ValueError(f"{name} must be more than 0 seconds, not {value}")
        if takeover_s <= every_s:
            raise ValueError(f"takeover_s must be more than every_s ({every_s}), not {takeover_s}")
        for name, count in (("rows_max", rows_max), ("bytes_max", bytes_max)):
            if count < 1:
                raise ValueError(f"{name} must be 1 or more, not {count}")
        if not 1 <= len(transactional_id) <= 249:
            text = f"transactional_id must have 1 to 249 characters, not {len(transactional_id)}"
            raise ValueError(text)
        super().__init__("sharecoord-outputs")
        self._beat_s = takeover_s / 5
        self._transactions = OutputTransactions(conf, transactional_id, self._wait_on, self._beat_s)
        self._rows = OutputRows(outbox, engine, transactional_id, takeover_s)
        self._every_s = every_s
        self._beat_at_s = 0.0
        self._limit = self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._clock = clock
        self._ended: BatchEnd | None = None
        """The end of the last batch, until the database has it."""
        self._held: dict[str, _Hold] = {}
        self._until_s = math.inf

    def stop(self) -> None:
        """Sends what is there, for 5 s at most, and ends the thread; what is left waits."""
        self._until_s = self._clock() + DRAIN_S
        self._join()
        self._shut()
        with contextlib.suppress(SQLAlchemyError):
            self._rows.leave()

    def _run(self) -> None:
        again_s, is_last = AGAIN_S, False
        while not is_last:
            is_last, wait_s = self._stop.is_set(), self._every_s
            try:
                self.run_once()
                again_s = AGAIN_S
            except Exception as error:  # noqa: BLE001 - Kafka or the database may be away for a while
                said = self._transactions.last_words
                self._log_once(f"outputs can not be sent: {error}{said and f' ({said})'}")
                # Jitter, so that relays do not try at the same time.
                wait_s = again_s * random.uniform(0.5, 1.0)
                again_s = min(2 * again_s, AGAIN_MAX_S)
            self._stop.wait(wait_s)

    def _wait_on(self) -> bool:
        """Beats between two looks at an answer of Kafka's; whether to wait for it any longer."""
        self._rows.beat()
        return self._clock() < self._until_s

    # -- one look -------------------------------------------------------------------------------

    def run_once(self) -> ProduceReport:
        """Sends everything that waits.

        After an error it is not known here what became of the last records; the next call asks
        Kafka, so that none is lost or sent twice.

        Raises:
            confluent_kafka.KafkaException: Kafka does not answer, or refuses the relay itself.
            IllegalStateException: Rows are on their way under another transactional id.
            sqlalchemy.exc.SQLAlchemyError: The database does not answer.
        """
        sent = refused = 0
        try:
            while True:
                if not self._transactions.is_open:
                    if not self._rows.take(self._clock):
                        return self._report(sent, refused, is_standby=True)
                    sent += self._open()
                batch = self._next()
                if batch is None:
                    return self._report(sent, refused)
                self._attempt(batch)
                if self._ended is not None and self._ended.has_arrived:
                    sent += len(batch.rows)
                elif self._ended is not None and self._ended.error is not None:
                    refused += len(batch.rows)
        except OvertakenError as error:
            self._shut()
            self._log_once(f"this relay of outputs stands back: {error}")
            return self._report(sent, refused, is_standby=True)
        except BaseException:
            self._shut()
            raise

    def _report(self, sent: int, refused: int, *, is_standby: bool = False) -> ProduceReport:
        return ProduceReport(sent, refused, tuple(self._held), is_standby)

    def _shut(self) -> None:
        self._ended = None
        self._transactions.close()

    def _open(self) -> int:
        """Reads Kafka's marks of former relays; returns how many of their rows had arrived.

        The head was taken before Kafka fences: who is fenced afterwards is the owner no more, and
        so only one relay has both.
        """
        if self._ended is not None:
            # The batch's end is certain, whatever happens to the next producer: store it first.
            self._rows.next(self._ended, rows_max=0, bytes_max=0, held=())
            self._ended = None
        self._transactions.open()
        in_flight = self._rows.in_flight()
        topics = sorted({topic for _, topic in in_flight})
        arrived = self._transactions.marks(topics) & {token for token, _ in in_flight}
        return self._rows.recover(arrived)

    def _next(self) -> Batch | None:
        now_s = self._clock()
        if now_s >= self._beat_at_s:
            self._rows.beat()
            self._beat_at_s = now_s + self._beat_s
        batch = self._rows.next(
            self._ended,
            rows_max=self._limit if now_s < self._until_s else 0,
            bytes_max=self._bytes_max,
            held=[topic for topic, hold in self._held.items() if now_s < hold.until_s],
        )
        self._ended = None
        if batch is None:
            # Nothing waits for topics that may be tried again.
            self._held = {topic: hold for topic, hold in self._held.items() if now_s < hold.until_s}
        return batch

    def _attempt(self, batch: Batch) -> None:
        problems = {topic: self._transactions.problem_with(topic) for topic in batch.topics}
        for topic, problem in problems.items():
            if problem is not None:
                self._hold(topic, problem)
        if any(problems.values()):
            self._ended = BatchEnd(batch.token)
            return
        try:
            self._transactions.send(batch, int(self._clock() * 1000))
        except RefusedError as error:
            self._ended = self._blame(batch, error)
            return
        self._ended = BatchEnd(batch.token, has_arrived=True)
        self._limit = min(2 * self._limit, self._rows_max)
        for topic in batch.topics:
            self._held.pop(topic, None)

    def _blame(self, batch: Batch, refused: RefusedError) -> BatchEnd:
        """Holds the topic or refuses the row to blame; while that is unclear, halves the batch."""
        is_alone = len(batch.rows) == 1
        row = batch.rows[0]
        if refused.is_topic and (refused.topics or is_alone):
            for topic in refused.topics or [row.topic]:
                self._hold(topic, refused.text)
        elif not is_alone:
            self._limit = len(batch.rows) // 2
        else:
            _log.error(f"output {row.id} for {row.topic} is refused: {refused.text}")
            return BatchEnd(batch.token, error=refused.text)
        return BatchEnd(batch.token)

    def _hold(self, topic: str, reason: str) -> None:
        hold = self._held.pop(topic, None)
        if hold is None:
            _log.warning(f"outputs for {topic} wait: {reason}")
        wait_s = HELD_S if hold is None else min(2 * hold.wait_s, HELD_MAX_S)
        while len(self._held) >= HELD_MAX:
            del self._held[min(self._held, key=lambda each: self._held[each].until_s)]
        self._held[topic] = _Hold(self._clock() + wait_s, wait_s)
