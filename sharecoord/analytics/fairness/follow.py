"""The streaming fairness job: closed windows go to tables, to people and to alerts.

Spark's checkpoint holds the progress and the open windows. A micro-batch that is done again after a
crash writes the same files again, and sends no alert a second time.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import frames
from sharecoord.analytics.alerts.delivery import Delivery
from sharecoord.analytics.alerts.machine import AlertState, WindowFigures, look
from sharecoord.analytics.alerts.rules import Rule
from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.fairness.job import WINDOWS
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.frames import Range
from sharecoord.analytics.hadoop import HadoopFolder
from sharecoord.analytics.jobs import check_out
from sharecoord.analytics.places import Place, TopicPlace
from sharecoord.analytics.session import defaults
from sharecoord.errors import SharecoordError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIVE: Final = "fairness_live"
CHECKPOINT: Final = "_checkpoint"
OURS: Final = "sharecoord"
"""Folder of the job's own files in the checkpoint."""
SETTINGS_FILE: Final = "settings.json"
BEGINS: Final = "begins"
"""Key in the settings file: where the checkpoint's events begin, the same after every restart."""

TOPIC_WATERMARK_MS: Final = 60_000
FOLDER_WATERMARK_MS: Final = 600_000
"""Watermark of a folder: a file appears up to `events.file.max.age.ms` (5 min) after its first row,
the file of one coordinator before that of another."""
TRIGGER: Final = "1 second"
"""Least time between the starts of two micro-batches: each costs some tenths of a second."""
POLL_S: Final = 0.5
"""Time between two looks at signals and at the progress of the query."""
STOP_S: Final = 30.0
"""How long the end waits for the micro-batch under way; it is done again at the next start."""
BETWEEN_BATCHES: Final = ("Waiting for ", "Getting offsets ")
"""Beginnings of Spark's status while a query only looks for more events."""
STATES_KEPT: Final = 2
"""States of alerts are stored for this many micro-batches: Spark may do the newest again."""
LOCAL_SETTINGS: Final = {"spark.sql.shuffle.partitions": "4"}
"""Settings of a session on one machine: each partition of the state costs every micro-batch two
commits."""

SPARK_SETTINGS: Final = {
    # State on disk: it holds every row of the watermark's time.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "512",
    # More micro-batches than that do not end within `POLL_S`.
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}
"""Settings of the query, which takes those that the session has at its start."""

LiveRow = dict[str, Any]
"""A row with the columns `stream.LIVE`; `window_start` in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """Settings of the streaming job."""

    fairness: FairnessSettings = field(default_factory=FairnessSettings)
    watermark_ms: int | None = None
    """How much older a row may be than the newest before it; None: 1 minute in a topic, 10 minutes
    in a folder."""
    checkpoint: str | None = None
    """Folder of the progress; None: `_checkpoint` in the folder of the tables."""
    once: bool = False
    """End when everything that is there at the start has been read."""
    until_idle_s: float | None = None
    """End when no event came for this time; None: never."""

    def watermark_of(self, place: Place) -> int:
        """The watermark, in milliseconds."""
        if self.watermark_ms is not None:
            return self.watermark_ms
        return TOPIC_WATERMARK_MS if isinstance(place, TopicPlace) else FOLDER_WATERMARK_MS


@dataclass(slots=True)
class FollowResult:
    """Counts of a stream that was followed to its end."""

    windows: int = 0
    """Windows that were closed; a window of several groups counts once."""
    late: int = 0
    """Rows that came later than the watermark, and were left out."""
    duplicates: int = 0
    """Rows that had come before, and were left out."""
    skipped: list[str] = field(default_factory=list)
    """Messages that were no events."""
    alerts: str | None = None
    """A line on the alerts that were delivered; None: there were none."""

    def warnings(self) -> list[str]:
        """Lines for people about rows and messages that were left out."""
        lines = frames.Findings(self.skipped).warnings(None)
        if self.late:
            lines.append(
                f"{self.late} rows came later than --watermark and were left out: a longer one "
                "waits for them"
            )
        if self.duplicates:
            lines.append(f"{self.duplicates} rows had come before and were left out")
        return lines


def run(
    spark: SparkSession,
    events: Place,
    out: str,
    *,
    settings: FollowSettings,
    wanted: Range = Range(),  # noqa: B008 - immutable
    rules: Sequence[Rule] = (),
    delivery: Delivery | None = None,
    show: Callable[[list[LiveRow]], None] = lambda _: None,
) -> FollowResult:
    """Follows events until a signal, or as the settings say.

    Args:
        spark: The session.
        events: Folder or topic.
        out: Folder of the tables `fairness_windows` and `fairness_live`, which grow.
        settings: Windows, watermark, checkpoint, and when to end.
        wanted: Time range and groups; without `since` it begins with the windows that are still
            open, unless `settings.once`.
        rules: Rules of alerts.
        delivery: Sends the alerts; only needed with rules.
        show: Takes the rows of windows as they close, in order of time and groups.

    Raises:
        AnalyticsError: The settings do not fit the checkpoint or the tables, or Spark fails.
        SharecoordError: Kafka does not answer, or refuses.
    """
    check_out(events, out)
    checkpoint = settings.checkpoint or f"{out.rstrip('/')}/{CHECKPOINT}"
    begins = None if wanted.since or settings.once else _open_since(settings, events, time.time())
    description = _description(events, wanted, settings)
    kept_since = _check_checkpoint(spark, checkpoint, out, description, begins)
    wanted = wanted._replace(since=wanted.since or kept_since)
    alerts = _Alerts(HadoopFolder(spark, f"{checkpoint}/{OURS}"), rules, delivery)
    closer = _Closer(out, settings.fairness, alerts, show)
    source = frames.follow_events(spark, events, wanted)
    with defaults(spark, SPARK_SETTINGS):
        watermark_ms = settings.watermark_of(events)
        query = _start(source, checkpoint, settings, watermark_ms, kept_since, closer)
    watch = _Watch(query, settings.until_idle_s)
    with stopping() as stop:
        try:
            watch.until_end(stop)
        except Exception as error:  # noqa: BLE001 - whatever Spark throws
            problem = closer.problem or error
            if isinstance(problem, SharecoordError):
                raise problem from None
            frames.raise_job_error(problem)
    result = FollowResult(closer.windows, watch.late, watch.duplicates)
    result.skipped = events.skipped() if isinstance(events, TopicPlace) else []
    result.alerts = delivery.summary() if delivery else None
    return result


def _open_since(settings: FollowSettings, events: Place, now_s: float) -> datetime:
    """Begin of the first window that is still open: all history would be one micro-batch."""
    window_s = settings.fairness.window_ms / 1_000
    open_s = now_s - settings.watermark_of(events) / 1_000
    return datetime.fromtimestamp(open_s // window_s * window_s, UTC)


def _start(
    events: DataFrame,
    checkpoint: str,
    settings: FollowSettings,
    watermark_ms: int,
    begins: datetime | None,
    closer: _Closer,
) -> StreamingQuery:
    from sharecoord.analytics.fairness import stream

    cells = stream.cells(stream.distinct(events, watermark_ms), settings.fairness)
    if begins is not None:
        # The first sample is of the second before, whose window was not read.
        cells = cells.where(cells["start_ms"] >= int(begins.timestamp() * 1_000))
    writer = (
        cells.writeStream.queryName("sharecoord-fairness")
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(closer.close)
    )
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=TRIGGER).start()


# -- the checkpoint -------------------------------------------------------------------------------


def _description(events: Place, wanted: Range, settings: FollowSettings) -> dict[str, Any]:
    """Options that must not change as long as a checkpoint is used."""
    return {
        "--events": str(events),
        "--window": settings.fairness.window_ms,
        "--starved-after": settings.fairness.starved_after_ms,
        "--group": sorted(wanted.groups),
    }


def _check_checkpoint(
    spark: SparkSession,
    checkpoint: str,
    out: str,
    description: dict[str, Any],
    begins: datetime | None,
) -> datetime | None:
    """Stores the description of a new checkpoint, or compares an old one with its own.

    Returns:
        Where the events of the checkpoint begin, which is `begins` for a new one; None: at the
        first event.

    Raises:
        AnalyticsError: The checkpoint or the tables are those of another run.
    """
    ours = HadoopFolder(spark, f"{checkpoint}/{OURS}")
    text = ours.read(SETTINGS_FILE)
    if text is not None:
        before = json.loads(text)
        for name, value in description.items():
            if before.get(name) != value:
                raise AnalyticsError(
                    f"{name} {value}: --checkpoint {checkpoint} was made with {before.get(name)}; "
                    "go on with that, or name another --checkpoint and another --out"
                )
        since = before.get(BEGINS)
        return None if since is None else datetime.fromisoformat(since)
    if HadoopFolder(spark, checkpoint).children():
        raise AnalyticsError(
            f"--checkpoint {checkpoint} is not empty, and was not made by this job: name another "
            "folder"
        )
    if HadoopFolder(spark, f"{out}/{WINDOWS}").children():
        raise AnalyticsError(
            f"--out {out} has a table {WINDOWS} of another run: name another --out, or the "
            "--checkpoint that belongs to it"
        )
    since = None if begins is None else begins.isoformat()
    ours.write(SETTINGS_FILE, json.dumps({**description, BEGINS: since}))
    return begins


# -- closed windows -------------------------------------------------------------------------------


class _Closer:
    """Takes the cells of closed windows from Spark after each micro-batch."""

    def __init__(
        self,
        out: str,
        settings: FairnessSettings,
        alerts: _Alerts,
        show: Callable[[list[LiveRow]], None],
    ) -> None:
        self.windows = 0
        self.problem: Exception | None = None
        self._out, self._settings = out, settings
        self._alerts, self._show = alerts, show

    def close(self, closed: DataFrame, batch_id: int) -> None:
        """Called by Spark; keeps an error as `problem`, because Spark passes on only its text."""
        try:
            self._close(closed, batch_id)
        except Exception as error:
            self.problem = error
            raise

    def _close(self, closed: DataFrame, batch_id: int) -> None:
        """Writes the tables, looks for alerts, shows the windows."""
        from sharecoord.analytics.fairness import stream

        closed = closed.persist()
        try:
            # Counts all partitions: each has its state to commit.
            if not closed.count():
                return
            window_rows = stream.windows(closed, self._settings).persist()
            try:
                self._save(window_rows, WINDOWS, batch_id)
                self._save(stream.live(closed, window_rows, self._settings), LIVE, batch_id)
            finally:
                window_rows.unpersist()
        finally:
            closed.unpersist()
        session: Any = closed.sparkSession
        rows = _live_rows(session.read.parquet(f"{self._out}/{LIVE}/batch={batch_id}"))
        self.windows += len({row["window_start"] for row in rows})
        self._alerts.look(rows, batch_id)
        self._show(rows)

    def _save(self, rows: DataFrame, table: str, batch_id: int) -> None:
        """A folder per micro-batch: done again, it replaces what it wrote."""
        rows.coalesce(1).write.mode("overwrite").parquet(f"{self._out}/{table}/batch={batch_id}")


def _live_rows(table: DataFrame) -> list[LiveRow]:
    """Rows in order of time and groups; bounded by groups times windows of a micro-batch."""
    from pyspark.sql import functions as F  # noqa: N812

    # As a number: Python would show a timestamp in the zone of the machine.
    plain = table.withColumn("window_start", F.unix_millis("window_start"))
    ordered = plain.orderBy("window_start", "group_id").toLocalIterator()
    return [row.asDict() for row in ordered]


class _Alerts:
    """Alerts on closed windows; their state after each micro-batch is stored in a file."""

    def __init__(
        self, folder: HadoopFolder, rules: Sequence[Rule], delivery: Delivery | None
    ) -> None:
        self._folder, self._rules, self._delivery = folder, rules, delivery

    def look(self, rows: Sequence[LiveRow], batch_id: int) -> None:
        """Looks at closed windows, once per micro-batch."""
        if self._delivery is None:
            return
        batches = self._batches()
        if batch_id in batches:
            return  # done before a crash; its alerts were sent
        before = [each for each in batches if each < batch_id]
        text = self._folder.read(_state_file(before[-1])) if before else None
        state = AlertState.from_json(json.loads(text)) if text else AlertState()
        alerts = []
        for _, window in groupby(rows, lambda row: row["window_start"]):
            alerts += look(state, self._rules, [WindowFigures.of_row(row) for row in window])
        self._delivery.deliver(alerts)
        self._folder.write(_state_file(batch_id), json.dumps(state.to_json()))
        for old in before[: 1 - STATES_KEPT]:
            self._folder.delete(_state_file(old))

    def _batches(self) -> list[int]:
        names = [name for name in self._folder.children() if name.startswith("alerts-")]
        return sorted(int(name.removeprefix("alerts-").removesuffix(".json")) for name in names)


def _state_file(batch_id: int) -> str:
    return f"alerts-{batch_id}.json"


# -- until the end --------------------------------------------------------------------------------


class _Watch:
    """Waits for the end of a query, and counts the rows that Spark left out meanwhile."""

    def __init__(self, query: StreamingQuery, until_idle_s: float | None) -> None:
        self.late = self.duplicates = 0
        self._query, self._until_idle_s = query, until_idle_s
        self._newest = ""

    def until_end(self, stop: threading.Event) -> None:
        """Returns when the query has ended, by itself or after a signal has set `stop`.

        Raises:
            StreamingQueryException: The query failed.
        """
        busy_s = time.monotonic()
        while not self._ended_within(POLL_S):
            if self._count() or self._is_busy():
                busy_s = time.monotonic()
            idle_s = time.monotonic() - busy_s
            if stop.is_set() or (self._until_idle_s is not None and idle_s >= self._until_idle_s):
                self._stop()
                break
        self._count()

    def _is_busy(self) -> bool:
        """Whether there is work, or the first look at the source is not over yet."""
        status = self._query.status
        if status["isDataAvailable"] or not self._newest:
            return True
        return not status["message"].startswith(BETWEEN_BATCHES)

    def _ended_within(self, timeout_s: float) -> bool:
        # pyspark's type stubs allow whole seconds only.
        query: Any = self._query
        return bool(query.awaitTermination(timeout_s))

    def _stop(self) -> None:
        """Lets the micro-batch under way end; one that takes longer is done again next time."""
        end_s = time.monotonic() + STOP_S
        while self._query.status["isTriggerActive"] and time.monotonic() < end_s:
            if self._ended_within(POLL_S):
                return
        self._query.stop()

    def _count(self) -> bool:
        """Adds up the micro-batches since the last call; returns whether one had rows."""
        had_rows = False
        for progress in self._query.recentProgress:
            if progress["timestamp"] <= self._newest:
                continue
            self._newest = progress["timestamp"]
            had_rows = had_rows or progress["numInputRows"] > 0
            for operator in progress["stateOperators"]:
                self.late += operator["numRowsDroppedByWatermark"]
                metrics = operator["customMetrics"] or {}
                self.duplicates += metrics.get("numDroppedDuplicateRows", 0)
        return had_rows


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; in other threads than the main one nothing sets it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, lambda *_: stop.set()) for each in signals}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def window_text(row: LiveRow) -> str:
    """The end of a window as text, in UTC."""
    end_s = (row["window_start"] + row["window_ms"]) / 1_000
    return datetime.fromtimestamp(end_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
