"""The timeline job: the life of one record, key or member, from a log of any size.

It runs on a cluster as `fairness.job`; one JSON object per event goes to stdout, in order.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import jobs
from sharecoord.analytics.errors import AnalyticsError, EventsNotFoundError
from sharecoord.analytics.frames import Range
from sharecoord.analytics.places import Place
from sharecoord.analytics.timeline import files
from sharecoord.analytics.timeline.files import Wanted
from sharecoord.analytics.timeline.story import Step, story
from sharecoord.eventlog.schema import COLUMN_NAMES, KEY_BYTES_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sharecoord.analytics.progress import Steps
    from sharecoord.analytics.rollups import EventLog

NAME: Final = "sharecoord timeline"
EVENTS: Final = "timeline_events"
JSON_KEYS: Final = (
    *("group", "time", "event", "topic", "partition", "first_offset", "last_offset", "member_id"),
    *("delivery_count", "state", "reason", "text"),
)
HEX: Final = "0x"


def run(
    spark: SparkSession,
    events: Place,
    out: str | None,
    *,
    whose: Wanted,
    wanted: Range = Range(),  # noqa: B008 - immutable
    skip_corrupt: bool = False,
) -> jobs.JobResult:
    """Reads a story from events: one row per event, in order, with `text`.

    Args:
        spark: The session.
        events: Folder or topic of the events.
        out: Folder for the story's events as a table, or None; not inside of `events`.
        whose: The record, key or member of the story.
        wanted: Time range; its groups do not count.
        skip_corrupt: Leave out files that can not be read, and name them in the result.

    Raises:
        AnalyticsError: There are no events, more than `STORY_EVENTS_MAX`, or as its subclasses say.
    """
    wanted = wanted._replace(groups=(whose.group_id,))
    return JOB.run(spark, events, out, wanted=wanted, settings=whose, skip_corrupt=skip_corrupt)


def _write(log: EventLog, out: str | None, whose: Wanted, _: Steps) -> jobs.JobResult:
    """Writes the story's events, if there is a folder; returns the story."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from sharecoord.analytics.timeline.transform import story_events

    # One more than a story may have shows that there are more.
    events = story_events(log.rows.select(*COLUMN_NAMES), whose)
    events = jobs.save(events.limit(files.STORY_EVENTS_MAX + 1), out, EVENTS)
    rows = [row.asDict() for row in events.withColumn("time", F.unix_micros("time")).collect()]
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
    story_rows = [_row(step) for step in story(rows)]
    return jobs.JobResult(story_rows, JSON_KEYS, schema_version=newest)


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
    """The record, key or member that options name.

    Topic and partition belong to the record, or narrow a key; a key is text, or `0x` and hex
    digits.

    Raises:
        AnalyticsError: Not exactly one of record, key and member is named, or a part is missing.
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
    """A key as the event log has it: its first bytes."""
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


def _add_options(options: argparse.ArgumentParser) -> None:
    for name in ("--topic", "--key", "--member"):
        options.add_argument(name)
    for name in ("--partition", "--offset"):
        options.add_argument(name, type=int)


def _chosen(given: argparse.Namespace) -> Wanted:
    if len(given.group) != 1:
        raise AnalyticsError("--group: name one group")
    return make_wanted(
        given.group[0],
        topic=given.topic,
        partition=given.partition,
        offset=given.offset,
        key=given.key,
        member_id=given.member,
    )


JOB: Final = jobs.Job(
    NAME,
    "The life of one record, key or member.",
    _write,
    lambda: make_wanted(""),  # which says what is missing
    ("events",),
    add_options=_add_options,
    chosen=_chosen,
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
