"""Options that the commands of `sharecoord analyze` share, and how their jobs are run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.session import DEFAULT_DRIVER_MEMORY, LOCAL_MASTER, running
from sharecoord.cli.options import FILE, ParamType, Parsed, no_color_option, options
from sharecoord.cli.output import Column, Output, note

if TYPE_CHECKING:
    from sharecoord.analytics.jobs import JobResult

F = TypeVar("F", bound=Callable[..., Any])

TABLE_ROWS_MAX: Final = 100
"""Most rows of a table on the screen; JSON and Parquet have all."""


class UtcTime(ParamType):
    """An ISO 8601 time; without a zone it is UTC."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The time as a value."""
        from sharecoord.analytics.frames import parse_time

        if isinstance(value, datetime):
            return value
        try:
            return parse_time(value)
        except ValueError:
            fix = "write 2026-01-31 or 2026-01-31T12:00+02:00"
            self.fail(f"{value!r} is no time; {fix}", param, ctx)


def _duration_ms(text: str) -> int:
    from sharecoord.analytics.times import parse_duration_ms

    return parse_duration_ms(text)


DURATION: Final = Parsed("duration", _duration_ms)
"""A time with a unit, as milliseconds."""


def duration_option(name: str, default: str, text: str) -> Callable[[F], F]:
    """An option for a time with a unit."""
    return click.option(
        name, type=DURATION, default=default, show_default=True, metavar="TIME", help=text
    )


window_option: Final = duration_option("--window", "10s", "Length of a window, whole seconds.")


def result_options(tables: str) -> Callable[[F], F]:
    """--out, --json and --no-color of a job that writes these tables."""
    return options(
        click.option(
            "--out",
            required=True,
            metavar="DIR",
            help=f"Folder of the tables {tables} (Parquet); tables of an earlier run are replaced.",
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object per line."),
        no_color_option,
    )


spark_options: Final = options(
    click.option(
        "--master",
        metavar="URL",
        help="local[N], spark://HOST:PORT, yarn or k8s://…; without it all cores of this "
        f"machine ({LOCAL_MASTER}).",
    ),
    click.option(
        "--driver-memory",
        default=DEFAULT_DRIVER_MEMORY,
        show_default=True,
        metavar="SIZE",
        help="Memory of Spark on this machine.",
    ),
)

_EVENTS_OPTIONS: Final = options(
    click.option(
        "--events",
        required=True,
        metavar="DIR|kafka:TOPIC",
        help="Folder of the events; a path, or a URI that Spark knows (hdfs://…, s3a://…); or a "
        "topic.",
    ),
    click.option(
        "--kafka",
        metavar="HOST:PORT",
        help="The cluster of --events kafka:TOPIC: host:port[,host:port].",
    ),
    click.option(
        "--kafka-config",
        type=FILE,
        help="Kafka's settings for --events kafka:TOPIC (librdkafka's or Java's properties).",
    ),
    click.option(
        "--group", "groups", multiple=True, metavar="GROUP", help="Share group (repeatable)."
    ),
    click.option(
        "--since", type=UtcTime(), metavar="TIME", help="From this time on (ISO 8601, UTC)."
    ),
    click.option("--until", type=UtcTime(), metavar="TIME", help="Up to this time, exclusive."),
    click.option(
        "--skip-corrupt", is_flag=True, help="Leave out files that can not be read, and say so."
    ),
)


def events_options(function: F) -> F:
    """--events, --kafka, --kafka-config, --group, --since, --until and --skip-corrupt.

    The command gets the place that the first three mean as `events`.
    """

    @functools.wraps(function)
    def command(
        *, events: str, kafka: str | None, kafka_config: Path | None, **given: Any
    ) -> object:
        from sharecoord.analytics.places import place_of

        skip_corrupt = given["skip_corrupt"]
        try:
            place = place_of(
                events, kafka=kafka, kafka_config=kafka_config, skip_corrupt=skip_corrupt
            )
        except AnalyticsError as error:
            raise click.UsageError(error.message) from None
        return function(events=place, **given)

    return _EVENTS_OPTIONS(cast("F", command))


def check_order(since: datetime | None, until: datetime | None) -> None:
    """Refuses an empty range of time before Spark starts."""
    from sharecoord.analytics.frames import Range, check_range

    try:
        check_range(Range(since, until))
    except AnalyticsError as error:
        raise click.UsageError(error.message) from None


def check_range_and_out(given: Mapping[str, Any]) -> None:
    """Refuses an empty range of time, and a bad --out, before Spark starts."""
    from sharecoord.analytics.jobs import check_out

    check_order(given["since"], given["until"])
    if given["out"] is not None:
        check_out(given["events"], given["out"])


def run_job(job: Any, given: Mapping[str, Any], **own: Any) -> Any:
    """Runs a job on the events that the command's options name.

    Args:
        job: Its module, which has NAME and `run`.
        given: Values of `events_options`, `result_options` and `spark_options`.
        own: Further arguments of the job's `run`.
    """
    from sharecoord.analytics.frames import Range

    wanted = Range(given["since"], given["until"], given["groups"])
    arguments = {"wanted": wanted, "skip_corrupt": given["skip_corrupt"], **own}
    with running(job.NAME, given["master"], given["driver_memory"]) as spark:
        return job.run(spark, given["events"], given["out"], **arguments)


def run_and_show(
    job: Any,
    settings: object,
    columns: Sequence[Column],
    verdict: Callable[[Mapping[str, Any]], str],
    given: Mapping[str, Any],
) -> None:
    """Runs a job and prints its table, each row with `verdict`'s words; see `run_job`."""
    check_range_and_out(given)
    show(run_job(job, given, settings=settings), columns, verdict, given)


def warn(result: JobResult) -> None:
    """Prints a job's warnings on stderr."""
    for line in result.warnings():
        note(f"sharecoord: warning: {line}")


def show(
    result: JobResult,
    columns: Sequence[Column],
    verdict: Callable[[Mapping[str, Any]], str] | None,
    given: Mapping[str, Any],
) -> None:
    """Prints a job's findings: all rows as JSON, or the first ones as a table.

    Args:
        result: Of the job.
        columns: Of the table on the screen.
        verdict: Words for a row; None: the rows have them already.
        given: Values of the command's options.
    """
    warn(result)
    if given["as_json"]:
        for line in result.lines():
            click.echo(line)
        return
    rows = result.rows[:TABLE_ROWS_MAX]
    if verdict is not None:
        rows = [{**row, "verdict": verdict(row)} for row in rows]
    Output(color=not given["no_color"]).show(columns, rows)
    if not rows:
        note("there are no events in this range")
    elif len(result.rows) > len(rows):
        note(f"{len(result.rows) - len(rows)} more rows: --json prints them all")
