"""The timeline job: the life of one record, key or member, from a log of any size.

On a cluster as `fairness.job`; one JSON object per event goes to stdout, in order.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

from sharecoord.analytics import jobs
from sharecoord.analytics.errors import AnalyticsError, EventsNotFoundError
from sharecoord.analytics.frames import Range
from sharecoord.analytics.places import Place
from sharecoord.analytics.timeline import files
from sharecoord.analytics.timeline.files import Wanted
from sharecoord.analytics.timeline.story import Step, story
from sharecoord.eventlog.schema import COLUMN_NAMES, KEY_BYTES_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sharecoord.analytics.rollups import EventLog

NAME: Final = "sharecoord timeline"
EVENTS: Final = "timeline_events"
JSON_KEYS: Final = (
    *("group", "time", "event", "topic", "partition", "first_offset", "last_offset", "member_id"),
    *("delivery_count", "state", "reason", "text"),
)
HEX: Final = "0x"


class TimelineResult(jobs.JobResult):
    """One row per event, in order, with `text`."""

    json_keys: ClassVar[tuple[str, ...]] = JSON_KEYS


def run(
    spark: SparkSession,
    events: Place,
    out: str | None,
    *,
    whose: Wanted,
    wanted: Range = Range(),  # noqa: B008 - immutable
    skip_corrupt: bool = False,
) -> TimelineResult:
    """Reads a story from the events of a folder.

    Args:
        spark: The session.
        events: Folder or topic of the events.
        out: Folder for the story's events as a table, or None; not inside of `events`.
        whose: Which record, key or member.
        wanted: Time range; its groups do not count.
        skip_corrupt: Leave out files that can not be read, and say so.

    Raises:
        AnalyticsError: There are none, more than `STORY_EVENTS_MAX`, or as its subclasses say.
    """

    def write(log: EventLog, fresh: str | None, _: object) -> TimelineResult:
        return _told(log.rows.select(*COLUMN_NAMES), fresh, whose)

    return jobs.run(
        spark,
        events,
        write,
        out=out,
        wanted=wanted._replace(groups=(whose.group_id,)),
        skip_corrupt=skip_corrupt,
        first_step="events",
        steps=1,
    )


def _told(events: DataFrame, out: str | None, whose: Wanted) -> TimelineResult:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from sharecoord.analytics.timeline.transform import story_events

    # One more than may be told says that there are more.
    found = story_events(events, whose).limit(files.STORY_EVENTS_MAX + 1)
    if out is not None:
        found = jobs.save(found, out, EVENTS)
    rows = [row.asDict() for row in found.withColumn("time", F.unix_micros("time")).collect()]
    if len(rows) > files.STORY_EVENTS_MAX:
        raise AnalyticsError(
            f"there are more than {files.STORY_EVENTS_MAX} events: ask for less time (--since, "
            "--until), or for one record"
        )
    if not rows:
        raise EventsNotFoundError(
            f"the events of group {whose.group_id} in this range tell nothing of it: look at its "
            "name, or at more time"
        )
    newest = max(row["schema_version"] or 0 for row in rows)
    return TimelineResult([_row(step) for step in story(rows)], schema_version=newest)


def _row(step: Step) -> dict[str, Any]:
    named = {name: step.event[name] for name in JSON_KEYS if name not in ("group", "text")}
    time = step.time.isoformat(timespec="milliseconds")
    return {**named, "group_id": step.event["group_id"], "time": time, "text": step.text}


def make_wanted(
    group_id: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    key: str | None = None,
    member_id: str | None = None,
) -> Wanted:
    """Whose story people ask for.

    Args:
        group_id: The share group.
        topic: Of the record; narrows a key.
        partition: As `topic`.
        offset: One record.
        key: Text, or `0x` and hex digits.
        member_id: One member.

    Raises:
        AnalyticsError: It is not exactly one of the three, or a part of it is missing.
    """
    if sum(given is not None for given in (offset, key, member_id)) != 1:
        raise AnalyticsError("name one of --offset (with --topic and --partition), --key, --member")
    if offset is not None and (topic is None or partition is None):
        raise AnalyticsError(f"--offset {offset}: --topic and --partition say of which partition")
    if member_id is not None and (topic is not None or partition is not None):
        raise AnalyticsError(
            "--member is told of all its partitions: leave out --topic, --partition"
        )
    return Wanted(group_id, topic, partition, offset, _key(key), member_id)


def _key(text: str | None) -> bytes | None:
    """The key as the log has it."""
    if text is None:
        return None
    if text.startswith(HEX):
        try:
            return bytes.fromhex(text.removeprefix(HEX))[:KEY_BYTES_MAX]
        except ValueError:
            raise AnalyticsError(
                f"--key {text}: after 0x there must be pairs of hex digits"
            ) from None
    return text.encode()[:KEY_BYTES_MAX]


# -- spark-submit ---------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """What `spark-submit job.py` runs; returns the exit code."""
    parser = jobs.parser(NAME, "The life of one record, key or member.")
    for name in ("--topic", "--key", "--member"):
        parser.add_argument(name)
    for name in ("--partition", "--offset"):
        parser.add_argument(name, type=int)

    def job(spark: SparkSession, given: Any, wanted: Range) -> TimelineResult:
        if len(wanted.groups) != 1:
            raise AnalyticsError("--group: name one group")
        whose = make_wanted(
            wanted.groups[0],
            topic=given.topic,
            partition=given.partition,
            offset=given.offset,
            key=given.key,
            member_id=given.member,
        )
        return run(
            spark,
            given.place,
            given.out,
            whose=whose,
            wanted=wanted,
            skip_corrupt=given.skip_corrupt,
        )

    return jobs.submitted(parser, argv, job)


if __name__ == "__main__":
    sys.exit(main())
