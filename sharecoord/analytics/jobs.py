"""The frame of all jobs: they read events, write tables, and return rows for people."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sharecoord.analytics import frames, progress
from sharecoord.analytics.errors import AnalyticsError, EventsNotFoundError, EventsTwiceError
from sharecoord.analytics.frames import Findings, Range
from sharecoord.analytics.hadoop import HadoopFolder
from sharecoord.analytics.places import Place, TopicPlace, place_of
from sharecoord.analytics.session import make_session
from sharecoord.analytics.times import parse_duration_ms, utc_text
from sharecoord.errors import SharecoordError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sharecoord.analytics.rollups import EventLog

UNFINISHED: Final = "_unfinished"
"""Folder of the tables of a run that is not over."""
FORMER: Final = "_former"
"""Folder of the tables of the run before while those of a new one take their place."""

S = TypeVar("S")


@dataclass(slots=True)
class JobResult:
    """The result of a job: rows for people and scripts, and what speaks against them.

    Attributes:
        rows: The rows of the job's main table; times as text, in UTC.
        json_keys: Keys of a row in JSON; `group` is its `group_id`.
        findings: Files that were skipped.
        lost: Rows that the writers lost and that name no group.
        schema_version: The highest of all events; None: there are no events.
        twice: Changes that are in more than one file.
    """

    rows: list[dict[str, Any]]
    json_keys: tuple[str, ...] = ()
    findings: Findings = field(default_factory=Findings)
    lost: int = 0
    schema_version: int | None = None
    twice: int = 0

    def warnings(self) -> list[str]:
        """Lines for people about files and rows that the figures do not have in them."""
        lines = self.findings.warnings(self.schema_version)
        if self.lost:
            lines.append(
                f"the writers of events lost {self.lost} rows of groups that are not known"
            )
        return lines

    def lines(self) -> Iterator[str]:
        """The rows as JSON, one object each."""
        for row in self.rows:
            named = {**row, "group": row["group_id"]}
            yield json.dumps({key: named[key] for key in self.json_keys}, ensure_ascii=False)


R = TypeVar("R", bound=JobResult)


def check_out(events: Place, out: str) -> None:
    """Raises AnalyticsError when the tables would lie among the events."""
    if isinstance(events, TopicPlace):
        return
    if "://" in events or "://" in out:
        inside = f"{out.rstrip('/')}/".startswith(f"{events.rstrip('/')}/")
    else:
        inside = Path(out).resolve().is_relative_to(Path(events).resolve())
    if inside:
        raise AnalyticsError(
            f"--out {out} lies inside of --events {events}: the tables would be read as events; "
            "name another folder"
        )


@contextmanager
def persisted(*frames_: DataFrame) -> Iterator[None]:
    """Keeps frames that are used more than once, on disk where they do not fit into memory."""
    for each in frames_:
        each.persist()
    try:
        yield
    finally:
        for each in frames_:
            each.unpersist()


def save(frame: DataFrame, out: str | None, table: str) -> DataFrame:
    """Writes a table into a folder of `tables`; returns the table as it was written.

    Without a folder nothing is written, and the frame itself is returned.
    """
    if out is None:
        return frame
    place = f"{out}/{table}"
    frame.write.mode("overwrite").parquet(place)
    # With a schema no file has to be opened for one.
    return frame.sparkSession.read.schema(frame.schema).parquet(place)


@contextmanager
def tables(spark: SparkSession, out: str) -> Iterator[str]:
    """A folder for tables, which replace those of an earlier run in `out` when all goes well.

    A job that fails, or is killed, leaves the earlier ones as they were.
    """
    place = HadoopFolder(spark, out)
    place.bring_back(FORMER)
    place.delete(UNFINISHED)
    try:
        yield f"{out.rstrip('/')}/{UNFINISHED}"
        place.take_in(UNFINISHED, FORMER)
    finally:
        with suppress(Exception):  # the job's own error is on its way
            place.delete(UNFINISHED)


def listed(table: DataFrame, *order: str | Column) -> list[dict[str, Any]]:
    """The rows of a small table in the given order; times are text in UTC.

    Spark's own text is in the time zone of the session, and Python's times in that of the machine.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    times = [name for name, kind in table.dtypes if kind == "timestamp"]
    columns = (
        F.unix_micros(name).alias(name) if name in times else F.col(f"`{name}`")
        for name in table.columns
    )
    ordered = (table.orderBy(*order) if order else table).select(*columns)
    rows = (row.asDict(recursive=True) for row in ordered.toLocalIterator())
    return [row | {name: utc_text(row[name]) for name in times} for row in rows]


@dataclass(frozen=True, slots=True)
class Job(Generic[S, R]):
    """A job that reads events and writes tables: as a function, and for `spark-submit`.

    Attributes:
        name: Name of the application, as clusters show it.
        title: First line of `--help`.
        write: Takes the log, the folder of the tables (None: there are none), settings and the
            progress; writes the tables.
        settings: Makes the default settings.
        steps: Names of the steps, as people call them.
        add_options: Adds the job's own options to those of `parser`.
        chosen: Makes the settings from the values of these options.
    """

    name: str
    title: str
    write: Callable[[EventLog, str | None, S, progress.Steps], R]
    settings: Callable[[], S]
    steps: tuple[str, ...]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda _: None
    chosen: Callable[[argparse.Namespace], S | None] = lambda _: None

    def run(
        self,
        spark: SparkSession,
        events: Place,
        out: str | None,
        *,
        wanted: Range = Range(),  # noqa: B008 - immutable
        settings: S | None = None,
        skip_corrupt: bool = False,
    ) -> R:
        """Reads events and writes the tables, which replace those of an earlier run at the end.

        Args:
            spark: The session.
            events: Folder or topic of the events.
            out: Folder of the tables, made when it is not there, not inside of `events`; None: no
                tables are written.
            wanted: Time range and groups.
            settings: None: the default ones.
            skip_corrupt: Leave out files that can not be read, and name them in the result.

        Raises:
            AnalyticsError: The job can not be done; its subclasses say why.
        """
        if out is not None:
            check_out(events, out)
        own = self.settings() if settings is None else settings
        findings = Findings()
        place: AbstractContextManager[str | None] = nullcontext()
        if out is not None:
            place = tables(spark, out)
        with progress.shown(spark, *self.steps) as steps, place as folder:

            def attempt(without: Collection[str]) -> R:
                log = frames.read_log(spark, events, wanted, without=without)
                return self.write(log, folder, own, steps)

            result = frames.reading(
                attempt, skip_corrupt=skip_corrupt, findings=findings, place=events
            )
            if result.twice:
                _refuse_doubled(spark, events, wanted, findings.skipped)
            if wanted.groups and not result.rows:
                raise EventsNotFoundError(
                    f"--group {', '.join(wanted.groups)}: --events {events} has nothing of it in "
                    "this range"
                )
        result.findings = findings
        return result

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Runs the job with the options of `spark-submit job.py`; returns the exit code."""
        options = parser(self.name, self.title)
        self.add_options(options)

        def job(spark: SparkSession, given: argparse.Namespace, wanted: Range) -> R:
            return self.run(
                spark,
                given.place,
                given.out,
                wanted=wanted,
                settings=self.chosen(given),
                skip_corrupt=given.skip_corrupt,
            )

        return submitted(options, argv, job)


def _refuse_doubled(
    spark: SparkSession, events: Place, wanted: Range, without: Collection[str]
) -> None:
    """Raises EventsTwiceError when two files have events in common."""
    assert isinstance(events, str), "a topic has no files"
    files = frames.doubled(spark, events, wanted, without=without)
    if files is not None:
        raise EventsTwiceError(
            f"{files[0]} and {files[1]} hold the same events, which would count twice (a copy, or "
            "files that were joined and then brought back?): move one of them out of the folder"
        )


# -- spark-submit ---------------------------------------------------------------------------------


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all jobs have."""
    options = argparse.ArgumentParser(prog=name, description=description)
    options.add_argument("--events", required=True, help="Folder of the events, or kafka:TOPIC.")
    options.add_argument("--kafka", help="host:port[,host:port] of --events kafka:TOPIC.")
    options.add_argument("--kafka-config", type=Path, help="Settings of librdkafka or Java.")
    options.add_argument("--out", required=True, help="Folder of the tables.")
    options.add_argument("--group", action="append", default=[], help="Share group (repeatable).")
    options.add_argument("--since", type=frames.parse_time, help="Inclusive, ISO 8601, UTC.")
    options.add_argument("--until", type=frames.parse_time, help="Exclusive, ISO 8601, UTC.")
    options.add_argument("--master", help="Without it what spark-submit was given.")
    options.add_argument("--skip-corrupt", action="store_true", help="Leave out unreadable files.")
    return options


def add_window(options: argparse.ArgumentParser) -> None:
    """Adds `--window`, of jobs that have time windows."""
    options.add_argument("--window", type=parse_duration_ms, default=10_000, help="Such as 10s.")


def submitted(
    options: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    job: Callable[[SparkSession, argparse.Namespace, Range], JobResult],
) -> int:
    """Runs a job with the options of `spark-submit job.py`; returns the exit code."""
    given = options.parse_args(argv)
    try:
        given.place = place_of(
            given.events,
            kafka=given.kafka,
            kafka_config=given.kafka_config,
            skip_corrupt=given.skip_corrupt,
        )
        spark = make_session(options.prog, master=given.master)
        result = job(spark, given, Range(given.since, given.until, tuple(given.group)))
    except SharecoordError as error:
        sys.stderr.write(f"{options.prog}: error: {error.message}\n")
        return 1
    for line in result.warnings():
        sys.stderr.write(f"{options.prog}: {line}\n")
    for line in result.lines():
        sys.stdout.write(f"{line}\n")
    return 0
