"""One trial: a fresh group and a fresh coordinator, consumers, a window, figures."""

from __future__ import annotations

import math
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sharecoord.bench.cluster import Cluster
from sharecoord.bench.coordinator import JoinWatch, MeasuredCoordinator
from sharecoord.bench.engine import parallel_consumer
from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Cell, Consumer, Events, Mode, Order, TopicKey
from sharecoord.bench.engine.figures import (
    Interval,
    Trial,
    exact_interval,
    latency_figures,
    records_per_consumer,
    speed_figures,
)
from sharecoord.bench.engine.fleet import Fleet, Sender
from sharecoord.bench.engine.job import LoadJob, SendJob
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.engine.search import search_max_rate
from sharecoord.bench.engine.send import Waker, due_ns, fill_backlog
from sharecoord.bench.engine.settings import (
    MAX_DRAIN_S,
    Settings,
    backlog_records,
    backlogs,
    consumers_per_process,
    topic_key,
)
from sharecoord.bench.engine.stage import FIRST_RECORD_S, Joins, Server, Stage
from sharecoord.bench.errors import BenchError
from sharecoord.devenv.stores import Stores
from sharecoord.devenv.topics import Topics

SETTLE_S: Final = 1.5
"""A coordinator counts once a second what it has done, and gives memory back meanwhile."""
LATE_S: Final = 10.0
"""How long is waited for records of the window once it is over."""
_CREATE_S: Final = 120.0
_LOCKS: Final = "share.partition.max.record.locks"
_ORDERING: Final = "share.ordering"
_EDGE: Final = 0.1  # the first and the last tenth of a backlog are not measured
_WAKE_S: Final = 0.1
_SENDER_START_S: Final = 1.5
_AFTER_WINDOW_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trial.

    Attributes:
        trial: Its figures.
        samples: Raw.
        origin_ns: When the window began; samples are written relative to it.
    """

    trial: Trial
    samples: Samples
    origin_ns: int


class Trials:
    """Makes trials on one cluster."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        scratch: Path,
        *,
        stores: Stores,
        tick: Callable[[], None] = lambda: None,
        settle_s: float = 0.0,
    ) -> None:
        """Nothing is started.

        Args:
            settings: Of the run.
            cluster: Where.
            scratch: An existing directory on a disk.
            stores: Makes the stores of coordinators.
            tick: Called often while a trial runs, for the progress bar.
            settle_s: How long a coordinator is left alone before its first client and after the
                last record. Only then a trial tells the memory of an idle coordinator, and what
                the whole trial cost the store. 0: it is not left alone.
        """
        self._settings = settings
        self._cluster = cluster
        self._scratch = scratch
        self._stores = stores
        self._tick = tick
        self._settle_s = settle_s
        self._topics = Topics(cluster.bootstrap_servers, timeout_s=_CREATE_S)
        if any(each.consumer is Consumer.PARALLEL_CONSUMER for each in settings.product().cells):
            parallel_consumer.prepare()
        self._backlogs: dict[TopicKey, tuple[str, int]] = {}

    def fill(self, stack: ExitStack, cells: Sequence[Cell], say: Callable[[str], None]) -> None:
        """Makes and fills the topics of cells; the stack deletes them."""
        for key, records in backlogs(self._settings, cells).items():
            self.topic(stack, key, records, say)

    def topic(
        self, stack: ExitStack, key: TopicKey, records: int, say: Callable[[str], None]
    ) -> str:
        """A topic with so many records in all, made and filled at its first use; as `fill`."""
        if self._backlogs.get(key, ("", 0))[1] < records:
            say(f"producing {records:,} records of {key.payload_bytes} B")
            name = f"bench-{uuid.uuid4().hex[:12]}"
            self._topics.create(name, partitions=key.partitions)
            stack.callback(self._topics.delete, name)
            fill_backlog(
                self._cluster.bootstrap_servers,
                name,
                key,
                records,
                batch_bytes=self._settings.batch_bytes,
                seed=self._settings.seed,
            )
            self._backlogs[key] = (name, records)
        return self._backlogs[key][0]

    def run(self, number: int, cell: Cell, repeat: int, *, records: int | None = None) -> Outcome:
        """Measures a cell once.

        Args:
            number: Of the cell.
            cell: What to measure.
            repeat: 0 for the rehearsal.
            records: How many records of the backlog are consumed; None: as many as the cell needs.

        Raises:
            SharecoordError: It could not be measured.
        """
        load_average = os.getloadavg()[0]
        probes: tuple[tuple[float, bool], ...] = ()
        mode = self._settings.mode
        if mode is Mode.MAX_RATE:
            figures, probes, samples, window = self._search(cell)
        elif mode is Mode.LATENCY:
            figures, samples, window = self._steady(cell)
        else:
            figures, samples, window = self._backlog(cell, records)
        counts = records_per_consumer(samples, window, cell.consumers)
        trial = Trial(number, repeat, figures, counts, probes, load_average)
        return Outcome(trial, samples, window.begin_ns)

    # -- a backlog: throughput, drain --------------------------------------------------------------

    def _backlog(
        self, cell: Cell, records: int | None
    ) -> tuple[dict[str, float], Samples, Interval]:
        drain = self._settings.mode is Mode.DRAIN
        topic, filled = self._backlogs.get(topic_key(cell), ("", 0))
        per_record = drain or bool(cell.work_ms)
        with self._stage(
            cell, topic, per_record=per_record, latency=False, board_records=filled
        ) as stage:
            first_ns = stage.first_record()
            if drain:
                window = self._until_drained(stage, first_ns, filled)
            else:
                needed = min(records or math.inf, backlog_records(self._settings, cell))
                window = self._over_backlog(stage, first_ns, cell, needed)
            own, began_ns = stage.own_figures(), stage.fleet.board.began_ns
            distinct, handled = stage.fleet.board.distinct(), stage.fleet.board.total
            end = stage.fleet.board.end
            samples = stage.fleet.finish()
            own |= stage.settled_figures()
        if self._settle_s and end:
            # One consumer is given a partition in order: more records than offsets means that
            # some came again.
            own["repeated_records"] = max(0, handled - end)
        if drain:
            window = exact_interval(samples, window)
        figures = {
            **speed_figures(cell, samples, window),
            **own,
            "first_record_s": (min(samples.began_ns) - began_ns) / 1e9,
        }
        if drain:
            figures["drain_s"] = window.seconds
            figures["repeated_records"] = max(0, handled - distinct)
        return figures, samples, window

    def _over_backlog(self, stage: Stage, first_ns: int, cell: Cell, records: float) -> Interval:
        """From the warm-up's end, or the first tenth, to the duration's, or the last tenth."""
        edge = records * _EDGE if records and not cell.work_ms else float("inf")
        end = records - records * _EDGE if records else float("inf")
        warm_ns = first_ns + int(self._settings.warm_up_s * 1e9)
        stage.wait(lambda: time.monotonic_ns() >= warm_ns or stage.fleet.board.total >= edge)
        begin = stage.read()
        stop_ns = begin.at_ns + int(self._settings.duration_s * 1e9)
        stage.wait(lambda: time.monotonic_ns() >= stop_ns or stage.fleet.board.total >= end)
        return stage.window(begin)

    def _until_drained(self, stage: Stage, first_ns: int, records: int) -> Interval:
        """From the first record to the moment when all were handled."""
        begin = stage.read()
        deadline_ns = first_ns + int(MAX_DRAIN_S * 1e9)

        def drained() -> bool:
            if time.monotonic_ns() > deadline_ns:
                raise BenchError(
                    f"{stage.fleet.board.distinct():,} of {records:,} records were handled within "
                    f"{MAX_DRAIN_S:.0f} s; give fewer records"
                )
            return stage.fleet.board.total >= records and stage.fleet.board.distinct() >= records

        stage.wait(drained)
        return stage.window(begin)

    # -- a steady rate: latency, max-rate ----------------------------------------------------------

    def _search(
        self, cell: Cell
    ) -> tuple[dict[str, float], tuple[tuple[float, bool], ...], Samples, Interval]:
        """The highest rate whose p99 holds, with the figures measured at it."""
        best: dict[float, tuple[dict[str, float], Samples, Interval]] = {}
        settings = self._settings

        def holds(rate: float) -> bool:
            measured = self._steady(replace(cell, rate=rate))
            best[rate] = measured
            figures = measured[0]
            return figures["p99_ms"] <= settings.p99_ms and not figures["missing_records"]

        found = search_max_rate(holds, settings.min_rate, settings.max_rate, settings.steps)
        figures, samples, window = best[found.rate or settings.min_rate]
        return {**figures, "max_rate_per_s": found.rate}, found.probes, samples, window

    def _steady(self, cell: Cell) -> tuple[dict[str, float], Samples, Interval]:
        assert cell.rate is not None, "checked with the settings"
        topic = f"bench-{uuid.uuid4().hex[:12]}"
        self._topics.create(topic, partitions=cell.partitions)
        try:
            return self._steady_on(cell, cell.rate, topic)
        finally:
            self._topics.delete(topic)

    def _steady_on(
        self, cell: Cell, rate: float, topic: str
    ) -> tuple[dict[str, float], Samples, Interval]:
        settings = self._settings
        seconds = settings.warm_up_s + settings.duration_s + _AFTER_WINDOW_S
        records = int(rate * seconds)
        with (
            self._stage(cell, topic, per_record=True, latency=True, board_records=records) as stage,
            ExitStack() as stack,
        ):
            self._wake(stage, topic, cell.partitions)
            start_ns = time.monotonic_ns() + int(_SENDER_START_S * 1e9)
            directory = stack.enter_context(self._directory())
            sender = stack.enter_context(
                self._sender(cell, rate, topic, start_ns, records, directory)
            )
            begin_ns = start_ns + int(settings.warm_up_s * 1e9)
            stage.wait(lambda: time.monotonic_ns() >= begin_ns)
            begin = replace(stage.read(), at_ns=begin_ns)
            end_ns = begin_ns + int(settings.duration_s * 1e9)
            stage.wait(lambda: time.monotonic_ns() >= end_ns)
            window = replace(stage.window(begin), end_ns=end_ns)
            first = first_due(window.begin_ns, start_ns, rate)
            end = first_due(window.end_ns, start_ns, rate)
            late_ns = time.monotonic_ns() + int(LATE_S * 1e9)
            board = stage.fleet.board
            stage.wait(
                lambda: board.distinct(first, end) == end - first or time.monotonic_ns() > late_ns
            )
            own, began_ns = stage.own_figures(), stage.fleet.board.began_ns
            own |= stage.member_figures()
            waited = missing_ns(
                stage.fleet.board,
                first,
                end,
                start_ns=start_ns,
                rate=rate,
                now_ns=time.monotonic_ns(),
            )
            late = sender.outcome(time.monotonic() + LATE_S + _AFTER_WINDOW_S + 10)["late_ms"]
            samples = stage.fleet.finish()
        figures = {
            **speed_figures(cell, samples, window),
            **latency_figures(samples, window, waited),
            **own,
            "first_record_s": (min(samples.began_ns) - began_ns) / 1e9,
            "producer_late_ms": late,
        }
        return figures, samples, window

    def _sender(
        self, cell: Cell, rate: float, topic: str, start_ns: int, records: int, directory: Path
    ) -> Sender:
        job = SendJob(
            bootstrap_servers=self._cluster.bootstrap_servers,
            topic=topic,
            key=topic_key(cell),
            seed=self._settings.seed,
            rate=rate,
            start_ns=start_ns,
            records=records,
            outcome=str(directory / "sent.json"),
        )
        return Sender(job, directory)

    def _wake(self, stage: Stage, topic: str, partitions: int) -> None:
        """Sends single records until one is handled."""
        waker = Waker(self._cluster.bootstrap_servers, topic, partitions)
        next_s = 0.0
        deadline = time.monotonic() + FIRST_RECORD_S
        while not stage.fleet.board.total:
            stage.fleet.check()
            now = time.monotonic()
            if now > deadline:
                raise BenchError(f"no record was handled within {FIRST_RECORD_S:.0f} s")
            if now >= next_s:
                waker.wake()
                next_s = now + _WAKE_S
            stage.pause()
        waker.finish()

    # -- what all have in common -------------------------------------------------------------------

    @contextmanager
    def _stage(
        self, cell: Cell, topic: str, *, per_record: bool, latency: bool, board_records: int
    ) -> Iterator[Stage]:
        """A server and subscribed consumers; all are gone at the end."""
        with ExitStack() as stack:
            directory = stack.enter_context(self._directory())
            server = self._server(stack, cell, directory)
            joins = self._watch_joins(stack, cell, server)
            job = LoadJob(
                cell,
                server.address,
                server.group,
                topic,
                self._settings.seed,
                per_record=per_record,
                latency=latency,
                board_records=board_records,
            )
            fleet = Fleet(job, directory, consumers_per_process(self._settings, cell))
            try:
                with fleet:
                    fleet.wait_ready()
                    yield Stage(
                        self._cluster,
                        server,
                        fleet,
                        joins=joins,
                        tick=self._tick,
                        settle_s=self._settle_s,
                    )
            except BenchError as error:
                coordinator = server.coordinator
                if coordinator is not None and coordinator.exit_code is not None:
                    raise BenchError(f"the coordinator ended: {coordinator.log_tail()}") from error
                raise

    def _server(self, stack: ExitStack, cell: Cell, directory: Path) -> Server:
        address = self._cluster.bootstrap_servers
        group = f"bench-{cell.consumer}-{uuid.uuid4().hex[:8]}"
        locks = {} if cell.record_locks is None else {_LOCKS: str(cell.record_locks)}
        if cell.consumer is Consumer.KAFKA_SHARE:
            self._topics.set_group_config(group, {"share.auto.offset.reset": "earliest", **locks})
        if cell.consumer is not Consumer.SHARECOORD:
            return Server(address, group)
        settings = {f"group.{name}": value for name, value in locks.items()}
        if cell.ordering is not Order.UNORDERED:
            settings[f"group.{_ORDERING}"] = str(cell.ordering)
        settings |= self._events(stack, cell, f"{group}-events", directory)
        settings["store.url"] = stack.enter_context(self._stores.fresh(cell.store))
        database = self._stores.server(cell.store)
        coordinator = MeasuredCoordinator(address, directory, settings=settings)
        stack.enter_context(coordinator)
        time.sleep(self._settle_s)
        return Server(
            coordinator.address,
            group,
            coordinator,
            None if database is None else database.pid,
            coordinator.rss_mb,
            coordinator.written_bytes,
        )

    def _events(self, stack: ExitStack, cell: Cell, name: str, directory: Path) -> dict[str, str]:
        """Settings of the event log, whose files or topic are deleted with the trial."""
        if cell.events is Events.NONE:
            return {}
        if cell.events is Events.PARQUET:
            return {"events.sink": f"parquet:{directory / name}"}
        self._topics.create(name)
        stack.callback(self._topics.delete, name)
        return {"events.sink": f"kafka:{name}"}

    def _watch_joins(self, stack: ExitStack, cell: Cell, server: Server) -> Joins | None:
        if server.coordinator is None:
            return None
        # A worker is one member, whatever its slots.
        members = cell.consumers
        watch = JoinWatch(server.address, server.group, members)
        stack.callback(watch.close)
        return Joins(watch, server.coordinator, members)

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            yield Path(name)


def first_due(at_ns: int, start_ns: int, rate: float) -> int:
    """Number of the first record that is due at or after a moment."""
    number = max(0, int((at_ns - start_ns) / 1e9 * rate) - 2)
    while due_ns(start_ns, rate, number) < at_ns:
        number += 1
    return number


def missing_ns(
    board: Board, first: int, end: int, *, start_ns: int, rate: float, now_ns: int
) -> list[int]:
    """How long each record from `first` to before `end` that nobody handled has been due."""
    return [
        now_ns - due_ns(start_ns, rate, first + place)
        for place, mark in enumerate(bytes(board.seen[first:end]))
        if not mark
    ]
