"""The event log as a Spark frame: Parquet files in folders `date=…/group=…`, or a topic.

All times are UTC. The frame has the columns of `eventlog.schema.COLUMNS`, in their order: a column
that a file does not have is null, columns of newer releases are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar
from urllib.parse import unquote

from sharecoord.analytics.errors import (
    AnalyticsError,
    EventsCorruptError,
    EventsNotFoundError,
    JobFailedError,
)
from sharecoord.analytics.event_columns import SCHEMA, SPARK_TYPES
from sharecoord.analytics.hadoop import HadoopFolder
from sharecoord.analytics.places import Place, TopicPlace
from sharecoord.errors import SharecoordError
from sharecoord.eventlog.rollups import DIRECTORY
from sharecoord.eventlog.schema import COLUMN_NAMES, COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from sharecoord.analytics.rollups import EventLog

T = TypeVar("T")

CORRUPT_FILES_MAX: Final = 100
"""How many unreadable files `reading` skips before it gives up: each costs a run of the job."""

PARQUET_BYTES_MIN: Final = 12
"""A Parquet file has a mark of 4 bytes at both ends, and 4 bytes with the length of its footer."""

_CORRUPT = (
    re.compile(r"while reading file (\S+?)\.?(?:\s|$)"),
    re.compile(r"footer for file:? (\S+?)\.?(?:\s|$)"),
)
_OUR_ERROR = re.compile(r"^\s*sharecoord\.(?:\w+\.)*\w+Error: (.+)$", re.MULTILINE)
_DIRECTORIES = "date string, group string"

MESSAGE_DELAY: Final = timedelta(minutes=5)
"""How far the clock that stamps a message may lag behind the one that stamps its events: a topic is
read from this long before `since` on."""


class Range(NamedTuple):
    """Time range and share groups of the events to read. Times have a time zone."""

    since: datetime | None = None
    """Inclusive; None: from the first event on."""
    until: datetime | None = None
    """Exclusive; None: up to the last event."""
    groups: tuple[str, ...] = ()
    """Share groups; empty: all. Rows of kind `lost` that name no group are always read."""


@dataclass(slots=True)
class Findings:
    """Unreadable files and messages that a reader left out."""

    skipped: list[str] = field(default_factory=list)

    def warnings(self, newest_version: int | None) -> list[str]:
        """Lines for people; `newest_version` is the highest of the rows, None without rows."""
        lines = [f"left out, because it can not be read: {path}" for path in self.skipped]
        if newest_version is not None and newest_version > SCHEMA_VERSION:
            lines.append(
                f"some events have schema version {newest_version}, this release knows "
                f"{SCHEMA_VERSION}: columns and kinds that are newer were not looked at; a newer "
                "release of sharecoord takes them into account"
            )
        return lines


def schema() -> StructType:
    """The events' schema as Spark has it."""
    from pyspark.sql.types import StructType

    struct = StructType.fromDDL(SCHEMA)
    assert isinstance(struct, StructType), "several columns"
    return struct


def complete(frame: DataFrame) -> DataFrame:
    """The frame with all columns of the events, in order; missing ones are null."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    columns = ((c, F.col(c.name) if c.name in frame.columns else F.lit(None)) for c in COLUMNS)
    return frame.select(*(value.cast(SPARK_TYPES[c.type]).alias(c.name) for c, value in columns))


def parse_time(text: str) -> datetime:
    """Reads ISO 8601; a time without a zone is UTC, a date its first instant.

    Raises:
        ValueError: The text is not a time.
    """
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def check_range(wanted: Range) -> None:
    """Raises AnalyticsError when nothing can lie between the ends."""
    if wanted.since and wanted.until and wanted.since >= wanted.until:
        raise AnalyticsError(
            f"--since {wanted.since.isoformat()} must be before --until {wanted.until.isoformat()}"
        )


def read_events(
    spark: SparkSession,
    place: Place,
    wanted: Range = Range(),  # noqa: B008 - immutable
    *,
    without: Collection[str] = (),
) -> DataFrame:
    """The events of a folder, or of a topic up to its present end.

    Folders of other dates and groups are not looked into; files that lie outside of such folders
    are read too.

    Args:
        spark: The session.
        place: Folder, or anything that Hadoop's file systems understand (`hdfs://…`, `s3a://…`);
            or a topic.
        wanted: Time range and groups.
        without: Files of a folder to leave out.

    Raises:
        EventsNotFoundError: The folder is not there, empty, or has no files in the range; the topic
            is empty.
        EventsCorruptError: A file is too short to be one.
        AnalyticsError: An empty range.
        SharecoordError: Kafka does not answer, or refuses.
    """
    check_range(wanted)
    if isinstance(place, TopicPlace):
        return in_range(read_kafka(spark, place, wanted), wanted)
    return _event_rows(_read_folder(spark, _Folder(spark, place), wanted, without)[0], wanted)


def read_log(
    spark: SparkSession,
    place: Place,
    wanted: Range = Range(),  # noqa: B008 - immutable
    *,
    without: Collection[str] = (),
) -> EventLog:
    """The events as `read_events`, with the rollups that a folder has of whole dates.

    Where rollups stand for the rows of a file, nobody may notice that the file can not be read.
    Rows of a folder have the column `census.FILE`, and `census.LIFE` when something was deleted.
    """
    from sharecoord.analytics.census import FILE, deletions, with_lives
    from sharecoord.analytics.rollups import EventLog

    if isinstance(place, TopicPlace):
        rows = read_events(spark, place, wanted)
        return EventLog(with_lives(rows, deletions(rows)))
    check_range(wanted)
    folder = _Folder(spark, place)
    frame, files = _read_folder(spark, folder, wanted, without)
    rows = _event_rows(_with_file_number(frame), wanted, FILE)
    deleted = deletions(rows)
    if deleted:
        # Rollups do not tell a share-partition from the one before it was deleted.
        return EventLog(with_lives(rows, deleted))
    dates = [name for name in map(_name, folder.dates()) if _lies_in(name, wanted)]
    rolled, rolled_files = _read_rollups(spark, folder.rollups(dates), files)
    if rolled is None:
        return EventLog(rows)
    unrolled_files = [file for file in files if _tail(file) not in rolled_files]
    unrolled = None
    if unrolled_files:
        frame = _reader(spark, folder).parquet(*map(unquote, unrolled_files))
        unrolled = _event_rows(_with_file_number(frame), wanted, FILE)
    return EventLog(rows, in_group(_with_file_number(rolled), wanted), unrolled)


def doubled(
    spark: SparkSession, place: str, wanted: Range, *, without: Collection[str] = ()
) -> tuple[str, str] | None:
    """Two files of a folder that have an event in common; None when there are none."""
    from pyspark.sql import functions as F  # noqa: N812

    from sharecoord.analytics.census import FILE, same_rows

    frame, _ = _read_folder(spark, _Folder(spark, place), wanted, without)
    rows = _event_rows(frame.withColumn(FILE, F.col("_metadata.file_path")), wanted, FILE)
    paths = same_rows(rows)
    if paths is None:
        return None
    # The path is escaped, however many slashes it begins with.
    one, other = (plain_path(unquote(path).replace("file:///", "file:/")) for path in paths)
    return one, other


def _with_file_number(frame: DataFrame) -> DataFrame:
    """Adds `census.FILE`: a number that stands for the file of a row."""
    from pyspark.sql import functions as F  # noqa: N812

    from sharecoord.analytics.census import FILE

    return frame.withColumn(FILE, F.xxhash64("_metadata.file_path"))


def _event_rows(frame: DataFrame, wanted: Range, *further: str) -> DataFrame:
    """The wanted rows of a folder's files, with the columns of events and further ones."""
    if wanted.groups:
        from pyspark.sql import functions as F  # noqa: N812

        # Some writers escape the bytes of UTF-8, which Spark reads back one by one.
        bytewise = [name.encode().decode("latin-1") for name in wanted.groups]
        folder = F.col("group").isNull() | F.col("group").isin("", *wanted.groups, *bytewise)
        frame = frame.where(folder)
    return in_range(frame, wanted).select(*COLUMN_NAMES, *further)


def in_range(frame: DataFrame, wanted: Range) -> DataFrame:
    """The rows of a frame that are in the time range, and of the groups."""
    from pyspark.sql import functions as F  # noqa: N812

    if wanted.since:
        frame = frame.where(F.col("time") >= F.lit(wanted.since))
    if wanted.until:
        frame = frame.where(F.col("time") < F.lit(wanted.until))
    return in_group(frame, wanted)


def in_group(frame: DataFrame, wanted: Range) -> DataFrame:
    """The rows of a frame that are of the wanted groups, or of no group."""
    from pyspark.sql import functions as F  # noqa: N812

    if not wanted.groups:
        return frame
    none = F.col("group_id").isNull() | (F.col("group_id") == "")
    return frame.where(F.col("group_id").isin(*wanted.groups) | none)


def _reader(spark: SparkSession, folder: _Folder) -> DataFrameReader:
    return spark.read.schema(f"{SCHEMA}, {_DIRECTORIES}").option("basePath", folder.location)


def _read_folder(
    spark: SparkSession, folder: _Folder, wanted: Range, left_out: Collection[str]
) -> tuple[DataFrame, list[str]]:
    """The frame, and the files that it reads, as Spark names them."""
    chosen = [place for place in folder.dates() if _meets(place, wanted)]
    if not chosen:
        since = wanted.since.isoformat() if wanted.since else "the beginning"
        until = wanted.until.isoformat() if wanted.until else "the end"
        raise EventsNotFoundError(
            f"--events {folder.given}: there are no files between {since} and {until} (UTC)"
        )
    reader = _reader(spark, folder)
    frame = reader.parquet(*chosen)
    files = frame.inputFiles()
    for file in _stubs(spark, folder.location, chosen):
        # Spark passes over empty files without a word.
        if file not in left_out:
            raise EventsCorruptError(f"{file} is empty", file)
    readable = [file for file in files if plain_path(file) not in left_out]
    if not readable:
        why = "every file in it is unreadable" if files else "it has no Parquet files"
        raise EventsNotFoundError(f"--events {folder.given}: {why} in the range")
    # Spark names files as URIs, and takes paths.
    whole = len(readable) == len(files)
    return frame if whole else reader.parquet(*map(unquote, readable)), readable


def _read_rollups(
    spark: SparkSession, places: Sequence[str], files: Iterable[str]
) -> tuple[DataFrame | None, Collection[str]]:
    """The rollups of the given files in folders of dates; None when none of the files has any.

    Returns:
        The frame, and the ends of the names (`_tail`) of the files whose rollups it has.
    """
    from sharecoord.analytics.rollups import schema

    if not places:
        return None, ()
    base = places[0].rstrip("/").rpartition("/")[0]
    reader = spark.read.schema(schema()).option("basePath", base)
    frame = reader.parquet(*places)
    by_tail = {_tail(file): file for file in frame.inputFiles()}
    tails = by_tail.keys() & {_tail(file) for file in files}
    if not tails:
        return None, ()
    if len(tails) < len(by_tail):
        frame = reader.parquet(*sorted(unquote(by_tail[tail]) for tail in tails))
    return frame, tails


def _tail(file: str) -> str:
    """Date, group and name of a file: the same for its rollups."""
    return "/".join(file.split("/")[-3:])


def _name(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2]


def follow_events(spark: SparkSession, place: Place, wanted: Range = Range()) -> DataFrame:  # noqa: B008
    """The events of a folder or topic as a stream: first what is there, then what comes.

    Raises the errors of `read_events`.
    """
    check_range(wanted)
    if isinstance(place, TopicPlace):
        return in_range(read_kafka(spark, place, wanted, stream=True), wanted)
    _Folder(spark, place)
    reader = spark.readStream.schema(f"{SCHEMA}, {_DIRECTORIES}")
    return in_range(reader.parquet(place), wanted).select(*COLUMN_NAMES)


def read_kafka(
    spark: SparkSession, place: TopicPlace, wanted: Range, *, stream: bool = False
) -> DataFrame:
    """The events of a topic: by Spark's own connector when it is there, else by ours.

    A batch ends where the topic ends now, however often the frame is used. Spark's connector is
    used only with settings that Java's client has, too. Reading begins shortly before
    `wanted.since`; other rows outside of the range are in the frame.

    Raises:
        InvalidConfigError: Kafka's settings are wrong.
        KafkaUnavailableError, UnknownTopicOrPartitionError, UnauthorizedError: Kafka says so.
        EventsNotFoundError: The topic is empty (of a batch).
    """
    from sharecoord.analytics.kafka_source import connector, source
    from sharecoord.analytics.kafka_source.options import EARLIEST, offsets_json, parse_options

    given = {"topic": place.topic, **{f"kafka.{k}": text for k, text in place.settings.items()}}
    if wanted.since:
        since_ms = int((wanted.since - MESSAGE_DELAY).timestamp() * 1_000)
        given["startingTimestamp"] = str(max(since_ms, 0))
    if stream:
        start = source.first_offsets(parse_options(given, stream=True), EARLIEST)
        chosen = {}
    else:
        start, end = source.batch_range(parse_options(given, stream=False))
        if start == end:
            raise EventsNotFoundError(f"--events {place}: the topic has no messages in the range")
        chosen = {"endingOffsets": offsets_json(place.topic, end)}
    given.pop("startingTimestamp", None)
    chosen["startingOffsets"] = offsets_json(place.topic, start)
    reader: Any = spark.readStream if stream else spark.read
    skipped = source.register(spark)
    place.noted.append(skipped)
    java = connector.java_settings(place.settings) if connector.is_there(spark) else None
    if java is not None:
        options = {"subscribe": place.topic, **{f"kafka.{key}": java[key] for key in java}}
        messages: DataFrame = reader.format("kafka").options(**options, **chosen).load()
        return connector.decoded(messages, skipped=skipped if place.skip_corrupt else None)
    options = {**given, **chosen, "skip.corrupt": str(place.skip_corrupt).lower()}
    frame: DataFrame = reader.format(source.NAME).options(**options).load()
    return frame


def _stubs(spark: SparkSession, root: str, places: list[str]) -> list[str]:
    """Files that are too short to be Parquet; at most `CORRUPT_FILES_MAX`."""
    files = spark.read.format("binaryFile").option("basePath", root).load(places)
    # Of an empty file Spark knows the name, and makes no row.
    long_enough = files.where(files["length"] >= PARQUET_BYTES_MIN).select("path")
    whole = {plain_path(row[0]) for row in long_enough.toLocalIterator()}
    return sorted({*map(plain_path, files.inputFiles())} - whole)[:CORRUPT_FILES_MAX]


def plain_path(uri: str) -> str:
    """A file as people write it: without `file://`, percent signs as they stand on disk."""
    # Spark names files as URIs, three slashes and escaped, and as Hadoop's paths, neither.
    if uri.startswith("file:///"):
        return unquote(uri.removeprefix("file://"))
    return uri.removeprefix("file:")


class _Folder:
    """The folder of an event log, on whatever file system it is."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.given = path
        self._spark = spark
        try:
            folder = HadoopFolder(spark, path)
            if not folder.exists():
                raise EventsNotFoundError(
                    f"--events {path}: there is no such folder; it is the DIR of the coordinator's "
                    "`events.sink: parquet:DIR`"
                )
            self.location, self._children = folder.location(), folder.children()
        except AnalyticsError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the JVM throws
            raise EventsNotFoundError(f"--events {path}: {first_line(error)}") from None

    def dates(self) -> list[str]:
        """URIs of folders and files that may hold events: all but hidden ones.

        Raises:
            EventsNotFoundError: There is none.
        """
        places = [uri for name, uri in self._children.items() if not name.startswith(("_", "."))]
        if not places:
            raise EventsNotFoundError(
                f"--events {self.given}: the folder is empty; a coordinator closes its first file "
                "after `events.file.max.age.ms` (5 minutes)"
            )
        return sorted(places)

    def rollups(self, dates: Collection[str]) -> list[str]:
        """URIs of the folders with rollups of these dates (`date=…`)."""
        if DIRECTORY not in self._children:
            return []
        rolled = HadoopFolder(self._spark, f"{self.given.rstrip('/')}/{DIRECTORY}").children()
        return sorted(uri for name, uri in rolled.items() if name in dates)


def _meets(place: str, wanted: Range) -> bool:
    """Whether a folder's date meets the range; one without a date may hold anything."""
    start = _start_of(_name(place))
    if start is None:
        return True
    ends_before = wanted.since is not None and start + timedelta(days=1) <= wanted.since
    begins_after = wanted.until is not None and start >= wanted.until
    return not (ends_before or begins_after)


def _lies_in(name: str, wanted: Range) -> bool:
    """Whether the whole date of a folder is in the range."""
    start = _start_of(name)
    if start is None:
        return False
    begins = wanted.since is None or wanted.since <= start
    return begins and (wanted.until is None or start + timedelta(days=1) <= wanted.until)


def _start_of(name: str) -> datetime | None:
    """The first instant of `date=2026-11-22`; None for every other name."""
    try:
        return datetime.fromisoformat(name.removeprefix("date=")).replace(tzinfo=UTC)
    except ValueError:
        return None


# -- files that can not be read -------------------------------------------------------------------


def reading(
    job: Callable[[Collection[str]], T],
    *,
    skip_corrupt: bool,
    findings: Findings,
    place: Place = "",
) -> T:
    """Runs a job on the events; an unreadable file or message is named, or skipped and noted.

    Args:
        job: Takes the files to leave out; it is run again after each file that is skipped.
        skip_corrupt: Whether the job goes on without an unreadable file.
        findings: Takes the names of skipped files and messages.
        place: The folder or topic that is read; a topic notes skipped messages by itself.

    Raises:
        EventsCorruptError: A file can not be read, and `skip_corrupt` is not set.
        JobFailedError: Spark failed for another reason.
    """
    while True:
        try:
            result = job(tuple(findings.skipped))
            if isinstance(place, TopicPlace):
                findings.skipped += place.skipped()
            return result
        except EventsCorruptError as error:
            _skip(error.path, error, findings, skip_corrupt=skip_corrupt)
        except SharecoordError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the JVM throws
            path = corrupt_file(str(error))
            if path is None:
                raise_job_error(error)
            _skip(path, error, findings, skip_corrupt=skip_corrupt)


def _skip(path: str, error: Exception, findings: Findings, *, skip_corrupt: bool) -> None:
    """Notes a file that can not be read; raises EventsCorruptError where it may not be skipped."""
    if not skip_corrupt or path in findings.skipped:
        raise EventsCorruptError(
            f"{path} can not be read (is it whole?): move it away, or leave it out with "
            "--skip-corrupt",
            path,
        ) from error
    findings.skipped.append(path)
    if len(findings.skipped) >= CORRUPT_FILES_MAX:
        raise EventsCorruptError(
            f"more than {CORRUPT_FILES_MAX} files can not be read, the last is {path}: look at the "
            "disk, then run `sharecoord events check`",
            path,
        ) from error


def corrupt_file(text: str) -> str | None:
    """The file that an error of Spark complains about, or None when it is about something else."""
    matches = (pattern.search(text) for pattern in _CORRUPT)
    return next((plain_path(match.group(1)) for match in matches if match), None)


def first_line(error: Exception) -> str:
    """The first line of an error, without the JVM's stack; its type when it has no text."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:500]


def raise_job_error(error: Exception) -> NoReturn:
    """Raises JobFailedError with Spark's error in words, or with our own that a task raised."""
    text = str(error)
    our_error = _OUR_ERROR.search(text)
    if our_error is not None:
        raise JobFailedError(our_error.group(1).strip()) from error
    if "No space left on device" in text:
        raise JobFailedError(
            "no space left on device: make room where --out and SPARK_LOCAL_DIRS (default: /tmp) "
            "are, or name another place"
        ) from error
    if "OutOfMemoryError" in text or "Java heap space" in text:
        raise JobFailedError(
            "Spark's driver ran out of memory: give it more with --driver-memory"
        ) from error
    raise JobFailedError(f"Spark failed: {first_line(error)}") from error
