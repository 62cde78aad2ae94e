"""What the jobs have in common: they read events, write tables, and say what they found."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

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


@dataclass(slots=True)
class JobResult:
    """What a job found.

    Attributes:
        rows: Of the table that people want first; times as text, in UTC.
        findings: Files that were skipped.
        lost: Rows that were lost and name no group.
        schema_version: The highest of all rows, or None.
        twice: Changes that are in more than one file.
    """

    json_keys: ClassVar[tuple[str, ...]] = ()
    """Of the rows; `group` is their `group_id`."""
    rows: list[dict[str, Any]]
    findings: Findings = field(default_factory=Findings)
    lost: int = 0
    schema_version: int | None = None
    twice: int = 0

    def warnings(self) -> list[str]:
        """What people have to know beside the figures."""
        lines = self.findings.warnings(self.schema_version)
        if self.lost:
            lines.append(
                f"the writers of events lost {self.lost} rows of groups that are not known"
            )
        return lines

    def lines(self) -> Iterator[str]:
        """One JSON object per row."""
        for row in self.rows:
            named = {**row, "group": row["group_id"]}
            yield json.dumps({key: named[key] for key in self.json_keys}, ensure_ascii=False)


S = TypeVar("S")
R = TypeVar("R", bound=JobResult)


def run(
    spark: SparkSession,
    events: Place,
    write: Callable[[EventLog, str | None, progress.Steps], R],
    *,
    out: str | None,
    wanted: Range,
    skip_corrupt: bool,
    first_step: str,
    steps: int,
) -> R:
    """Runs a job on the events of a folder or topic.

    Args:
        spark: The session.
        events: Folder or topic of the events.
        write: Takes the log and a folder for the tables, writes them.
        out: Folder of the tables; None when there are none.
        wanted: Time range and groups.
        skip_corrupt: Leave out files that can not be read, and say so.
        first_step: Of the job, as people call it.
        steps: How many it has.

    Raises:
        AnalyticsError: See its subclasses.
    """
    if out is not None:
        check_out(events, out)
    findings = Findings()
    place: AbstractContextManager[str | None] = nullcontext() if out is None else tables(spark, out)
    with progress.shown(spark, first_step, steps=steps) as shown, place as fresh:

        def once(without: Collection[str]) -> R:
            return write(frames.read_log(spark, events, wanted, without=without), fresh, shown)

        result = frames.reading(once, skip_corrupt=skip_corrupt, findings=findings, place=events)
        if result.twice:
            _refuse_doubled(spark, events, wanted, findings.skipped)
        if wanted.groups and not result.rows:
            raise EventsNotFoundError(
                f"--group {', '.join(wanted.groups)}: --events {events} has nothing of it in this "
                "range"
            )
    result.findings = findings
    return result


def _refuse_doubled(
    spark: SparkSession, events: Place, wanted: Range, without: Collection[str]
) -> None:
    """Raises EventsTwiceError when files have events in common."""
    assert isinstance(events, str), "of a topic nobody knows"
    found = frames.doubled(spark, events, wanted, without=without)
    if found is not None:
        raise EventsTwiceError(
            f"{found[0]} and {found[1]} hold the same events, which would count twice (a copy, or "
            "files that were joined and then brought back?): move one of them out of the folder"
        )


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
    """Keeps what is used more than once, on disk where it does not fit."""
    for each in frames_:
        each.persist()
    try:
        yield
    finally:
        for each in frames_:
            each.unpersist()


def save(frame: DataFrame, out: str, table: str) -> DataFrame:
    """Writes a table; returns what was written.

    Args:
        frame: The rows.
        out: A folder that `tables` gives.
        table: Its name.
    """
    place = f"{out}/{table}"
    frame.write.mode("overwrite").parquet(place)
    # With a schema no file has to be opened for one.
    return frame.sparkSession.read.schema(frame.schema).parquet(place)


@contextmanager
def tables(spark: SparkSession, out: str) -> Iterator[str]:
    """A folder for tables; when all goes well they take the place of those of an earlier run.

    A job that fails, or is killed, leaves the earlier ones as they were.

    Args:
        spark: The session.
        out: Where they are to be in the end.
    """
    place = HadoopFolder(spark, out)
    place.bring_back(FORMER)
    place.delete(UNFINISHED)
    try:
        yield f"{out.rstrip('/')}/{UNFINISHED}"
        place.take_in(UNFINISHED, FORMER)
    finally:
        with suppress(Exception):  # what was wrong is on its way
            place.delete(UNFINISHED)


def listed(table: DataFrame, *order: str | Column) -> list[dict[str, Any]]:
    """The rows of a table that is small, in the order that is asked for; times are text in UTC.

    Spark's own text is in the time zone of the session, and Python's times in that of the machine.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    times = [name for name, kind in table.dtypes if kind == "timestamp"]
    numbers = {name: F.unix_micros(name) for name in times}
    found = (table.orderBy(*order) if order else table).select(
        *(numbers[name].alias(name) if name in numbers else f"`{name}`" for name in table.columns)
    )
    rows = (row.asDict(recursive=True) for row in found.toLocalIterator())
    return [row | {name: utc_text(row[name]) for name in times} for row in rows]


@dataclass(frozen=True, slots=True)
class Job(Generic[S, R]):
    """A job that reads events and writes tables: as a function, and for `spark-submit`.

    Attributes:
        name: Of the application, as clusters show it.
        title: What it finds, for `--help`.
        write: Takes the log, the folder of the tables, settings and the progress.
        settings: Makes the default settings.
        first_step: As people call it.
        steps: How many it has.
        options: Adds its own options to `parser`.
        chosen: Its settings as these options say.
    """

    name: str
    title: str
    write: Callable[[EventLog, str, S, progress.Steps], R]
    settings: Callable[[], S]
    first_step: str
    steps: int
    options: Callable[[argparse.ArgumentParser], None] = lambda _: None
    chosen: Callable[[argparse.Namespace], S | None] = lambda _: None

    def run(
        self,
        spark: SparkSession,
        events: Place,
        out: str,
        *,
        wanted: Range = Range(),  # noqa: B008 - immutable
        settings: S | None = None,
        skip_corrupt: bool = False,
    ) -> R:
        """Reads events and writes the tables, which replace those of an earlier run at the end.

        Args:
            spark: The session.
            events: Folder or topic of the events.
            out: Folder of the tables, made when it is not there; not inside of `events`.
            wanted: Time range and groups.
            settings: The default ones when there are none.
            skip_corrupt: Leave out files that can not be read, and say so.

        Raises:
            AnalyticsError: See its subclasses.
        """
        own = self.settings() if settings is None else settings

        def write(log: EventLog, fresh: str | None, steps: progress.Steps) -> R:
            assert fresh is not None, "there are tables"
            return self.write(log, fresh, own, steps)

        return run(
            spark,
            events,
            write,
            out=out,
            wanted=wanted,
            skip_corrupt=skip_corrupt,
            first_step=self.first_step,
            steps=self.steps,
        )

    def main(self, argv: Sequence[str] | None = None) -> int:
        """What `spark-submit job.py` runs; returns the exit code."""
        made = parser(self.name, self.title)
        self.options(made)

        def job(spark: SparkSession, given: argparse.Namespace, wanted: Range) -> R:
            return self.run(
                spark,
                given.place,
                given.out,
                wanted=wanted,
                settings=self.chosen(given),
                skip_corrupt=given.skip_corrupt,
            )

        return submitted(made, argv, job)


# -- spark-submit ---------------------------------------------------------------------------------


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all jobs have."""
    made = argparse.ArgumentParser(prog=name, description=description)
    made.add_argument("--events", required=True, help="Folder of the events, or kafka:TOPIC.")
    made.add_argument("--kafka", help="host:port[,host:port] of --events kafka:TOPIC.")
    made.add_argument("--kafka-config", type=Path, help="Settings of librdkafka or Java.")
    made.add_argument("--out", required=True, help="Folder of the tables.")
    made.add_argument("--group", action="append", default=[], help="Share group (repeatable).")
    made.add_argument("--since", type=frames.parse_time, help="Inclusive, ISO 8601, UTC.")
    made.add_argument("--until", type=frames.parse_time, help="Exclusive, ISO 8601, UTC.")
    made.add_argument("--master", help="Without it what spark-submit was given.")
    made.add_argument("--skip-corrupt", action="store_true", help="Leave out unreadable files.")
    return made


def add_window(made: argparse.ArgumentParser) -> None:
    """--window, of jobs that have windows."""
    made.add_argument("--window", type=parse_duration_ms, default=10_000, help="Such as 10s.")


def submitted(
    made: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    job: Callable[[SparkSession, argparse.Namespace, Range], JobResult],
) -> int:
    """What `spark-submit job.py` runs; returns the exit code."""
    given = made.parse_args(argv)
    try:
        given.place = place_of(
            given.events,
            kafka=given.kafka,
            kafka_config=given.kafka_config,
            skip_corrupt=given.skip_corrupt,
        )
        spark = make_session(made.prog, master=given.master)
        result = job(spark, given, Range(given.since, given.until, tuple(given.group)))
    except SharecoordError as error:
        sys.stderr.write(f"{made.prog}: error: {error.message}\n")
        return 1
    for line in result.warnings():
        sys.stderr.write(f"{made.prog}: {line}\n")
    for line in result.lines():
        sys.stdout.write(f"{line}\n")
    return 0
