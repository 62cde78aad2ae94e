"""The report: what the jobs on fairness, lag, failures and locks find, shown on one page.

It runs on a cluster as `fairness.job`; the driver writes the page.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import jobs
from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.fairness import job as fairness
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.lag import job as lag
from sharecoord.analytics.lag.settings import LagSettings
from sharecoord.analytics.locks import job as locks
from sharecoord.analytics.places import Place
from sharecoord.analytics.poison import job as poison
from sharecoord.analytics.poison.settings import PoisonSettings
from sharecoord.analytics.report.model import GroupPart, Report, Row
from sharecoord.analytics.report.page import page
from sharecoord.analytics.report.verdict import verdicts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sharecoord.analytics.progress import Steps
    from sharecoord.analytics.rollups import EventLog

NAME: Final = "sharecoord report"
PAGE_NAME: Final = "report.html"
GROUPS_DRAWN: Final = 20
"""Most groups with plots, those with trouble first: a longer page opens slowly."""
JSON_KEYS: Final = ("group", "verdicts")

_Rows = list[dict[str, Any]]


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


@dataclass(slots=True)
class ReportResult(jobs.JobResult):
    """A row per group that is drawn, worst first: `group_id` and `verdicts`; and the page."""

    groups: list[GroupPart] = field(default_factory=list)
    """Groups that are drawn."""
    left_out: list[Row] = field(default_factory=list)
    """Rows of `fairness_groups` of the other groups."""
    period: tuple[str, str] | None = None
    """Times of the first and the last event."""
    page: Path = Path(PAGE_NAME)


class _ReportJob(jobs.Job[ReportSettings, ReportResult]):
    """A job that also writes a page."""

    def run(
        self, spark: SparkSession, events: Place, out: str | None, **given: Any
    ) -> ReportResult:
        """Reads events, writes the tables of four jobs and the page; see `jobs.Job.run`."""
        assert out is not None, "the plots are made of the tables"
        settings = given.get("settings") or ReportSettings()
        place = settings.page_in(out)
        result = jobs.Job.run(self, spark, events, out, **given)
        report = Report(
            str(events),
            settings.window_ms,
            result.period,
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}",
            result.groups,
            result.left_out,
            result.warnings(),
        )
        _replace(place, page(report))
        result.page = place
        return result


def _write(log: EventLog, out: str | None, settings: ReportSettings, steps: Steps) -> ReportResult:
    """Writes the tables of the four jobs; returns the groups with the rows of their plots."""
    window_ms = settings.window_ms
    fair = fairness.JOB.write(log, out, FairnessSettings(window_ms=window_ms), steps)
    if fair.twice:  # which is an error: the other jobs would be for nothing
        return ReportResult([], twice=fair.twice)
    lagging = lag.JOB.write(log, out, LagSettings(window_ms=window_ms), steps)
    failing = poison.JOB.write(log, out, PoisonSettings(), steps)
    locked = locks.JOB.write(log, out, None, steps)
    parts = _parts(fair.rows, lagging.rows, failing.rows, locked.rows)
    steps.next()
    drawn = _with_plots(log.rows, f"{out}", window_ms, parts[:GROUPS_DRAWN])
    return ReportResult(
        [{"group_id": part.group_id, "verdicts": verdicts(part)} for part in drawn],
        JSON_KEYS,
        lost=fair.lost,
        schema_version=fair.schema_version,
        groups=drawn,
        left_out=[part.fairness for part in parts[GROUPS_DRAWN:] if part.fairness],
        period=_period(log.rows),
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
    events: DataFrame, out: str, window_ms: int, parts: list[GroupPart]
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
        return chosen(events.sparkSession.read.parquet(f"{out}/{name}"))

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


def _add_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--page", type=Path, help=f"The page; {PAGE_NAME} in --out without it.")
    jobs.add_window(options)


JOB: Final = _ReportJob(
    NAME,
    "All findings on share groups on one page.",
    _write,
    ReportSettings,
    (*fairness.JOB.steps, *lag.JOB.steps, *poison.JOB.steps, *locks.JOB.steps, "plots"),
    add_options=_add_options,
    chosen=lambda given: ReportSettings(given.window, given.page),
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
