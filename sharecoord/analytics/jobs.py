"""What the jobs have in common: they read events, write tables, and say what they found."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sharecoord.analytics import frames, progress
from sharecoord.analytics.errors import AnalyticsError, EventsNotFoundError
from sharecoord.analytics.frames import Findings, Range
from sharecoord.analytics.places import Place, TopicPlace, place_of
from sharecoord.analytics.session import make_session
from sharecoord.analytics.times import parse_duration_ms
from sharecoord.errors import SharecoordError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sharecoord.analytics.rollups import EventLog


@dataclass(slots=True)
class JobResult:
    """What a job found.

    Attributes:
        rows: Of the table that people want first; times as text, in UTC.
        findings: Files that were skipped.
        lost: Rows that were lost and name no group.
        schema_version: The highest of all rows, or None.
    """

    json_keys: ClassVar[tuple[str, ...]] = ()
    """Of the rows; `group` is their `group_id`."""
    rows: list[dict[str, Any]]
    findings: Findings = field(default_factory=Findings)
    lost: int = 0
    schema_version: int | None = None

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
    write: Callable[[EventLog, progress.Steps], R],
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
        write: Takes the log, writes the tables.
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
    with progress.shown(spark, first_step, steps=steps) as shown:

        def once(without: Collection[str]) -> R:
            return write(frames.read_log(spark, events, wanted, without=without), shown)

        result = frames.reading(once, skip_corrupt=skip_corrupt, findings=findings, place=events)
    if wanted.groups and not result.rows:
        raise EventsNotFoundError(
            f"--group {', '.join(wanted.groups)}: --events {events} has nothing of it in this range"
        )
    result.findings = findings
    return result


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
def kept(*frames_: DataFrame) -> Iterator[None]:
    """Keeps what is used more than once, on disk where it does not fit."""
    for each in frames_:
        each.persist()
    try:
        yield
    finally:
        for each in frames_:
            each.unpersist()


def save(frame: DataFrame, out: str, table: str) -> DataFrame:
    """Writes a table, in the place of one of an earlier run; returns what was written."""
    place = f"{out}/{table}"
    frame.write.mode("overwrite").parquet(place)
    # With a schema no file has to be opened for one.
    return frame.sparkSession.read.schema(frame.schema).parquet(place)


def listed(table: DataFrame, *order: str | Column) -> list[dict[str, Any]]:
    """The rows of a table that is small, in order.

    Times become text: Python would show them in the zone of the machine.
    """
    shown = [
        f"date_format(`{name}`, \"yyyy-MM-dd HH:mm:ss'Z'\") AS `{name}`"
        if kind == "timestamp"
        else f"`{name}`"
        for name, kind in table.dtypes
    ]
    found = table.orderBy(*order).selectExpr(*shown)
    return [row.asDict(recursive=True) for row in found.toLocalIterator()]


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
        """Reads events and writes the tables; those of an earlier run are replaced.

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
        return run(
            spark,
            events,
            lambda log, steps: self.write(log, out, own, steps),
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
