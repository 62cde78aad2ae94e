"""The what-if job: reads events, and runs one simulation per task of Spark."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import frames, progress
from sharecoord.analytics.errors import AnalyticsError, EventsNotFoundError
from sharecoord.analytics.frames import Findings, Range
from sharecoord.analytics.whatif.grid import gathered, throws
from sharecoord.analytics.whatif.model import Measured, Prediction, simulate
from sharecoord.analytics.whatif.settings import Scenario

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

NAME: Final = "sharecoord what-if"

REPLAY_S_MAX: Final = 600
"""Longest replay unless another length is asked for: a simulation takes seconds, not minutes."""
LISTED_MAX: Final = 10
"""Most groups and topics that an error lists."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded group and topic, read from events."""

    group: str
    topic: str
    members: int
    """Most members that wanted the topic at a time."""
    partitions: int
    """Number of partitions that were sampled."""
    seconds: int
    """Length of the replay."""
    measured: Measured
    """Arrivals and service times; without service times when no record was settled."""
    findings: Findings
    """Files that were skipped."""


def read(
    spark: SparkSession,
    events: str,
    *,
    wanted: Range = Range(),  # noqa: B008 - immutable
    topic: str | None = None,
    seconds: float | None = None,
    skip_corrupt: bool = False,
) -> Recorded:
    """Reads arrivals and service times of one group and one topic.

    Args:
        spark: The session.
        events: Folder of the events.
        wanted: Time range, and the group.
        topic: Name of the topic, when there are several.
        seconds: Length of the replay; None = all, `REPLAY_S_MAX` at most.
        skip_corrupt: Leave out files that can not be read.

    Raises:
        AnalyticsError: Several groups or topics and none is named, or too little was recorded; see
            its subclasses too.
    """
    findings = Findings()

    def attempt(without: Collection[str]) -> Recorded:
        frame = frames.read_events(spark, events, wanted, without=without)
        return _read(frame, topic, seconds, findings)

    with progress.shown(spark, "events"):
        return frames.reading(attempt, skip_corrupt=skip_corrupt, findings=findings)


def _read(
    events: DataFrame, topic: str | None, seconds: float | None, findings: Findings
) -> Recorded:
    from pyspark.sql import functions as F  # noqa: N812

    from sharecoord.analytics.whatif import transform

    # As numbers: as times they would be in the machine's zone, which has some hours twice.
    numbers = {name: F.unix_micros(name) for name in ("begin", "end")}
    rows = transform.subjects(events).withColumns(numbers).orderBy("group_id", "topic").collect()
    subject = chosen([row for row in rows if topic in (None, row["topic"])])
    length_s = (subject["end"] - subject["begin"]) // 1_000_000
    length_s = min(length_s, int(seconds or REPLAY_S_MAX))
    if length_s < 1:
        raise AnalyticsError(
            f"group {subject['group_id']}, topic {subject['topic']}: there is less than a second "
            "of samples to replay; record more, or widen --since and --until"
        )
    # The replay begins at the first sample: half of the sample's second belongs to it.
    until = F.timestamp_micros(F.lit(subject["begin"] + length_s * 1_000_000 + 500_000))
    own = events.where(
        (F.col("group_id") == subject["group_id"])
        & (F.col("topic") == subject["topic"])
        & (F.col("time") <= until)
    ).persist()
    try:
        measured = Measured(
            arrivals_of(transform.backlog(own).collect(), transform.arrivals(own).collect()),
            service_of(transform.service_times(own).collect()),
        )
    finally:
        own.unpersist()
    return Recorded(
        subject["group_id"],
        subject["topic"],
        max(subject["members"] or 0, len(measured.service), 1),
        subject["partitions"],
        length_s,
        measured,
        findings,
    )


def chosen(subjects: Sequence[Row]) -> Row:
    """The only row of `transform.subjects`.

    Raises:
        EventsNotFoundError: There is none.
        AnalyticsError: There are several.
    """
    if not subjects:
        raise EventsNotFoundError(
            "there are no samples of share-partitions in this range: what-if needs them to know "
            "when records came"
        )
    if len(subjects) > 1:
        names = [f"--group {row['group_id']} --topic {row['topic']}" for row in subjects]
        more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
        raise AnalyticsError(
            f"the events have several groups or topics; name one: {'; '.join(names[:LISTED_MAX])}"
            f"{more}"
        )
    return subjects[0]


def arrivals_of(backlog: Sequence[Row], arrivals: Sequence[Row]) -> list[dict[int, int]]:
    """Rows of `transform.backlog` and `transform.arrivals` as `Measured.arrivals`."""
    begin = min((row["second"] for row in arrivals), default=0)
    partitions: dict[int, dict[int, int]] = defaultdict(dict)
    for row in backlog:
        partitions[row["partition"]][-1] = row["records"]
    for row in arrivals:
        partitions[row["partition"]][row["second"] - begin] = row["records"]
    return [partitions[number] for number in sorted(partitions)]


def service_of(rows: Sequence[Row]) -> list[list[tuple[float, float]]]:
    """Rows of `transform.service_times` as `Measured.service`: one histogram per member."""
    members: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["member_id"], row["ms"])):
        members[row["member_id"]].append((row["ms"], row["records"]))
    return list(members.values())


# -- simulations as tasks -------------------------------------------------------------------------


def predict(
    spark: SparkSession, points: Sequence[Scenario], repeats: int | None, measured: Measured
) -> list[Prediction]:
    """As `grid.predict`, with one task of Spark per simulation."""
    wanted = throws(points, repeats)
    run = partial(_tasks, [each.to_json() for each in wanted], measured)
    with progress.shown(spark, "simulations"):
        rows = (
            spark.range(len(wanted), numPartitions=len(wanted))
            .mapInArrow(run, "id long, figures string")
            .collect()
        )
    by_id = {row["id"]: json.loads(row["figures"]) for row in rows}
    outcomes = [Prediction(each, **by_id[number]) for number, each in enumerate(wanted)]
    return gathered(points, repeats, outcomes)


def _tasks(
    scenarios: Sequence[dict[str, Any]], measured: Measured, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in Spark's workers: numbers of simulations in, figures out."""
    import pyarrow as pa

    for batch in batches:
        numbers = batch.column("id").to_pylist()
        figures = [
            json.dumps(simulate(Scenario(**scenarios[number]), measured).figures())
            for number in numbers
        ]
        yield pa.RecordBatch.from_arrays(
            [pa.array(numbers, pa.int64()), pa.array(figures, pa.string())], ["id", "figures"]
        )


def replay(
    spark: SparkSession,
    recorded: Recorded,
    points: Sequence[Scenario],
    *,
    repeats: int | None,
    work_as_measured: bool,
    tell: Callable[[str], None],
) -> list[Prediction]:
    """Simulates the points of a grid with what was measured.

    Unless `work_as_measured`, handlers take as long as the points say. `tell` takes lines for
    people.

    Raises:
        AnalyticsError: It is not known how long handlers work.
    """
    for line in recorded.findings.warnings(None):
        tell(f"sharecoord: warning: {line}")
    measured = recorded.measured
    if not work_as_measured:
        measured = Measured(measured.arrivals)
    elif not measured.service:
        raise AnalyticsError(
            f"group {recorded.group}: no record was settled in this range, so it is not known how "
            "long handlers work: say it with --work-ms"
        )
    records = sum(sum(per_second.values()) for per_second in measured.arrivals)
    tell(
        f"replaying {recorded.seconds} s of group {recorded.group}, topic {recorded.topic}: "
        f"{records:,} records, {recorded.partitions} partitions, "
        f"{recorded.members} members"
    )
    return predict(spark, points, repeats, measured)
