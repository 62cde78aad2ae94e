"""The report: runs the jobs on fairness, lag, failures and locks, and puts it all on one page.

On a cluster as `fairness.job`; the page is written by the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

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
"""Groups with plots, those with trouble first; a page of more nobody reads, nor opens quickly."""
JSON_KEYS: Final = ("group", "verdicts")


class ReportResult(jobs.JobResult):
    """A row per group that is drawn, worst first: `group_id` and `verdicts`.

    Attributes:
        page: Where the page is.
    """

    json_keys: ClassVar[tuple[str, ...]] = JSON_KEYS
    page: Path


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """Settings of the jobs behind the report.

    Attributes:
        window_ms: Length of a window, of all jobs.
        page: File of the page; None: `report.html` in the folder of the tables.
    """

    window_ms: int = 10_000
    page: Path | None = None

    def page_in(self, out: str) -> Path:
        """Where the page goes.

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
        settings: Windows, and where the page goes.
        skip_corrupt: Leave out files that can not be read, and say so.

    Raises:
        AnalyticsError: See its subclasses.
    """
    chosen = settings or ReportSettings()
    place = chosen.page_in(out)
    window_ms = chosen.window_ms

    def found(job: Any, own: Any) -> jobs.JobResult:
        result: jobs.JobResult = job.run(
            spark, events, out, wanted=wanted, settings=own, skip_corrupt=skip_corrupt
        )
        return result

    by_job = {
        "fairness": found(fairness, FairnessSettings(window_ms=window_ms)),
        "lag": found(lag, LagSettings(window_ms=window_ms)),
        "poison": found(poison, None),
        "locks": found(locks, None),
    }
    first = by_job["fairness"]
    parts = _parts({name: result.rows for name, result in by_job.items()})
    drawn = parts[:GROUPS_DRAWN]
    shown = frames.read_events(spark, events, wanted, without=first.findings.skipped)
    with progress.shown(spark, "plots"):
        report = Report(
            str(events),
            window_ms,
            _period(shown),
            f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}",
            _drawn(spark, shown, out, window_ms, drawn),
            [part.fairness for part in parts[GROUPS_DRAWN:] if part.fairness],
            first.warnings(),
        )
    _replace(place, page(report))
    rows = [{"group_id": part.group_id, "verdicts": verdicts(part)} for part in report.groups]
    result = ReportResult(rows, first.findings, first.lost, first.schema_version)
    result.page = place
    return result


def _period(events: DataFrame) -> tuple[str, str] | None:
    """Times of the first and the last event."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    ends = events.agg(F.min("time").alias("first"), F.max("time").alias("last"))
    (row,) = jobs.listed(ends)
    return None if row["first"] is None else (row["first"], row["last"])


def _replace(place: Path, text: str) -> None:
    """Writes a file; whoever reads it sees all of it or the one before."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(place)


def _parts(rows: Mapping[str, list[dict[str, Any]]]) -> list[GroupPart]:
    """The groups with what the jobs say of them, trouble first."""
    single = {
        name: {row["group_id"]: row for row in rows[name]}
        for name in ("fairness", "poison", "locks")
    }
    places = _by_group(rows["lag"])
    names = sorted({*places, *(name for found in single.values() for name in found)})
    parts = [
        GroupPart(
            name,
            single["fairness"].get(name),
            places.get(name, []),
            single["poison"].get(name),
            single["locks"].get(name),
        )
        for name in names
        if name
    ]
    return sorted(parts, key=lambda part: part.trouble, reverse=True)


def _by_group(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["group_id"], []).append(row)
    return found


def _drawn(
    spark: SparkSession, events: DataFrame, out: str, window_ms: int, parts: list[GroupPart]
) -> list[GroupPart]:
    """The same groups with what is plotted; everything that is collected is bounded per group."""
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

    def listed(frame: DataFrame, *order: str) -> dict[str, list[dict[str, Any]]]:
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
    return [
        GroupPart(
            part.group_id,
            part.fairness,
            part.places,
            part.poison,
            part.locks,
            **{name: by_group.get(part.group_id, []) for name, by_group in plots.items()},
        )
        for part in parts
    ]


# -- spark-submit ---------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """What `spark-submit job.py` runs; returns the exit code."""
    parser = jobs.parser(NAME, "All findings on share groups on one page.")
    parser.add_argument("--page", type=Path, help=f"The page; {PAGE_NAME} in --out without it.")
    jobs.add_window(parser)
    return jobs.submitted(
        parser,
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
