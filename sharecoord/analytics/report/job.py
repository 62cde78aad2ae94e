"""The report: runs the jobs on fairness, lag, failures and locks, and shows it all on one page.

It runs on a cluster as `fairness.job`; the driver writes the page.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import frames, jobs, progress
from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.fairness import job as fairness
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.frames import Range
from sharecoord.analytics.lag import job as lag
from sharecoord.analytics.lag.settings import LagSettings
from sharecoord.analytics.locks import job as locks
from sharecoord.analytics.places import Place
from sharecoord.analytics.poison import job as poison
from sharecoord.analytics.report.model import GroupPart, Report
from sharecoord.analytics.report.page import page
from sharecoord.analytics.report.verdict import verdicts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "sharecoord report"
PAGE_NAME: Final = "report.html"
GROUPS_DRAWN: Final = 20
"""Most groups with plots, those with trouble first: a longer page opens slowly."""
JSON_KEYS: Final = ("group", "verdicts")

_Rows = list[dict[str, Any]]


@dataclass(slots=True)
class ReportResult(jobs.JobResult):
    """A row per group that is drawn, worst first: `group_id` and `verdicts`; and the page."""

    page: Path = Path(PAGE_NAME)


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Settings of the report."""

    window_ms: int = 10_000
    """Length of a time window, of all jobs."""
    page: Path | None = None
    """File of the page; None: `report.html` in the folder of the tables."""

    def page_in(self, out: str) -> Path:
        """The file of the page.

        Raises:
            AnalyticsError: The tables are not on this machine, and no file was named.
        """
        if self.page is not None:
            return self.page
        if "://" in out and not out.startswith("file://"):
            raise AnalyticsError(f"--page FILE is missing: --out {out} is not on this machine")
        return Path(out.removeprefix("file://")) / PAGE_NAME


def run(
    spark: SparkSession,
    events: Place,
    out: str,
    *,
    wanted: Range = Range(),  # noqa: B008 - immutable
    settings: ReportSettings | None = None,
    skip_corrupt: bool = False,
) -> ReportResult:
    """Reads events, writes the tables of four jobs and the page.

    Args:
        spark: The session.
        events: Folder or topic of the events.
        out: Folder of the tables, made when it is not there; not inside of `events`.
        wanted: Time range and groups.
        settings: Windows, and the file of the page.
        skip_corrupt: Leave out files that can not be read, and name them in the result.

    Raises:
        AnalyticsError: A job can not be done; its subclasses say why.
    """
    chosen = settings or ReportSettings()
    place = chosen.page_in(out)
    window_ms = chosen.window_ms

    def result_of(job: Any, own: Any) -> jobs.JobResult:
        result: jobs.JobResult = job.run(
            spark, events, out, wanted=wanted, settings=own, skip_corrupt=skip_corrupt
        )
        return result

    first = result_of(fairness, FairnessSettings(window_ms=window_ms))
    lag_rows = result_of(lag, LagSettings(window_ms=window_ms)).rows
    poison_rows, locks_rows = result_of(poison, None).rows, result_of(locks, None).rows
    parts = _parts(first.rows, lag_rows, poison_rows, locks_rows)
    events_read = frames.read_events(spark, events, wanted, without=first.findings.skipped)
    with progress.shown(spark, "plots"):
        report = Report(
            str(events),
            window_ms,
            _period(events_read),
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}",
            _with_plots(spark, events_read, out, window_ms, parts[:GROUPS_DRAWN]),
            [part.fairness for part in parts[GROUPS_DRAWN:] if part.fairness],
            first.warnings(),
        )
    _replace(place, page(report))
    rows = [{"group_id": part.group_id, "verdicts": verdicts(part)} for part in report.groups]
    return ReportResult(
        rows, JSON_KEYS, first.findings, first.lost, first.schema_version, page=place
    )


def _period(events: DataFrame) -> tuple[str, str] | None:
    """Times of the first and the last event."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    ends = events.agg(F.min("time").alias("first"), F.max("time").alias("last"))
    (row,) = jobs.listed(ends)
    return None if row["first"] is None else (row["first"], row["last"])


def _replace(place: Path, text: str) -> None:
    """Writes a file; whoever reads it sees all of it or the former one."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(place)


def _parts(
    fairness_rows: _Rows, lag_rows: _Rows, poison_rows: _Rows, locks_rows: _Rows
) -> list[GroupPart]:
    """The groups with their rows of all jobs, groups with trouble first."""
    fair, failing, locked = (
        {row["group_id"]: row for row in rows} for rows in (fairness_rows, poison_rows, locks_rows)
    )
    places = _by_group(lag_rows)
    names = sorted({*places, *fair, *failing, *locked})
    parts = [
        GroupPart(name, fair.get(name), places.get(name, []), failing.get(name), locked.get(name))
        for name in names
        if name
    ]
    return sorted(parts, key=lambda part: part.trouble, reverse=True)


def _by_group(rows: _Rows) -> dict[str, _Rows]:
    by_group: dict[str, _Rows] = {}
    for row in rows:
        by_group.setdefault(row["group_id"], []).append(row)
    return by_group


def _with_plots(
    spark: SparkSession, events: DataFrame, out: str, window_ms: int, parts: list[GroupPart]
) -> list[GroupPart]:
    """The same groups with the rows of their plots; whatever is collected is bounded per group."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from sharecoord.analytics.fairness.transform import acquired
    from sharecoord.analytics.report import transform

    names = [part.group_id for part in parts]
    if not names:
        return []

    def chosen(frame: DataFrame) -> DataFrame:
        return frame.where(F.col("group_id").isin(*names))

    def table(name: str) -> DataFrame:
        return chosen(spark.read.parquet(f"{out}/{name}"))

    def listed(frame: DataFrame, *order: str) -> dict[str, _Rows]:
        return _by_group(jobs.listed(frame, *order))

    members = table(fairness.MEMBERS)
    rows = transform.heat_rows(members)
    handed_out = chosen(acquired(events, FairnessSettings(window_ms=window_ms)))
    plots = {
        "members": listed(
            transform.listed_members(members).withColumn("_less", -F.col("starvation_ms")),
            *("group_id", "_less", "member_id"),
        ),
        "heat_labels": listed(transform.heat_labels(rows), "group_id", "row"),
        "heat": listed(transform.heat(handed_out, rows), "group_id", "row", "bin"),
        "lorenz": listed(transform.lorenz(members), "group_id", "members_share"),
        "dwells": listed(transform.dwells(members), "group_id", "members_share"),
        "use": listed(transform.window_use(chosen(events), window_ms), "group_id", "bin"),
        "waiting": listed(transform.waiting(table(lag.WINDOWS)), "group_id", "bin"),
        "deliveries": listed(table(poison.DELIVERIES), "group_id", "delivery_count"),
    }

    def plotted(group_id: str) -> dict[str, Any]:
        return {name: rows.get(group_id, []) for name, rows in plots.items()}

    return [replace(part, **plotted(part.group_id)) for part in parts]


# -- spark-submit ---------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Runs the report with the options of `spark-submit job.py`; returns the exit code."""
    options = jobs.parser(NAME, "All findings on share groups on one page.")
    options.add_argument("--page", type=Path, help=f"The page; {PAGE_NAME} in --out without it.")
    jobs.add_window(options)
    return jobs.submitted(
        options,
        argv,
        lambda spark, given, wanted: run(
            spark,
            given.place,
            given.out,
            wanted=wanted,
            settings=ReportSettings(given.window, given.page),
            skip_corrupt=given.skip_corrupt,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
