"""The event log as a Spark frame: Parquet files in folders `date=…/group=…`, or a topic.

All times are UTC. The frame has the columns of `eventlog.schema.COLUMNS`, in their order: what a
file does not have is null, what it has beside them is left out.
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
from sharecoord.analytics.places import Place, TopicPlace
from sharecoord.errors import SharecoordError
from sharecoord.eventlog.rollups import DIRECTORY
from sharecoord.eventlog.schema import COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

    from sharecoord.analytics.rollups import EventLog

T = TypeVar("T")

CORRUPT_FILES_MAX: Final = 100
"""How many unreadable files `reading` skips before it gives up: each costs a run of the job."""

PARQUET_BYTES_MIN: Final = 12
"""Its mark at both ends, and the length of its footer."""

_CORRUPT = (
    re.compile(r"while reading file (\S+?)\.?(?:\s|$)"),
    re.compile(r"footer for file:? (\S+?)\.?(?:\s|$)"),
)
_OURS = re.compile(r"^\s*sharecoord\.(?:\w+\.)*\w+Error: (.+)$", re.MULTILINE)
_DIRECTORIES = "date string, group string"

MESSAGE_DELAY: Final = timedelta(minutes=5)
"""By so much the clock that stamps a message may lag behind the one that stamps its events: a topic
is read from so long before `since` on."""


class Range(NamedTuple):
    """Which events are meant. Times have a time zone; both ends may be open."""

    since: datetime | None = None
    """Inclusive."""
    until: datetime | None = None
    """Exclusive."""
    groups: tuple[str, ...] = ()
    """Share groups; empty: all. Rows of kind `lost` that name no group always belong to it."""


@dataclass(slots=True)
class Findings:
    """What a reader has to say beside its result; never silent.

    Attributes:
        skipped: Unreadable files that were left out.
    """

    skipped: list[str] = field(default_factory=list)

    def warnings(self, newest_version: int | None) -> list[str]:
        """Lines for people.

        Args:
            newest_version: The highest `schema_version` of the rows, or None when there are none.
        """
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

    found = StructType.fromDDL(SCHEMA)
    assert isinstance(found, StructType), "several columns"
    return found


def complete(frame: DataFrame) -> DataFrame:
    """The frame with all columns of the events, in order; missing ones are null."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return frame.select(
        *(
            (F.col(c.name) if c.name in frame.columns else F.lit(None))
            .cast(SPARK_TYPES[c.type])
            .alias(c.name)
            for c in COLUMNS
        )
    )


def parse_time(text: str) -> datetime:
    """Reads ISO 8601; a time without a zone is UTC, a date its first instant.

    Raises:
        ValueError: It is not a time.
    """
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


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
        without: Files that are left out, as full paths.

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
    root = _Folder(spark, place)
    return _meant(_read_folder(spark, root, wanted, set(without))[0], wanted)


def read_log(
    spark: SparkSession,
    place: Place,
    wanted: Range = Range(),  # noqa: B008 - immutable
    *,
    without: Collection[str] = (),
) -> EventLog:
    """As `read_events`, with the rollups that a folder has of whole dates.

    Where rollups stand for the rows of a file, nobody may notice that the file can not be read.
    Rows of a folder have the columns `census.FILE` and, where it is needed, `census.LIFE`, too.
    """
    from sharecoord.analytics.census import FILE, deletions, with_lives
    from sharecoord.analytics.rollups import EventLog, schema

    if isinstance(place, TopicPlace):
        rows = read_events(spark, place, wanted, without=without)
        return EventLog(with_lives(rows, deletions(rows)))
    check_range(wanted)
    root = _Folder(spark, place)
    frame, files = _read_folder(spark, root, wanted, set(without))
    rows = _meant(_numbered_files(frame), wanted, FILE)
    gone = deletions(rows)
    if gone:
        # Rollups do not tell a share-partition from the one before it was deleted.
        return EventLog(with_lives(rows, gone))
    dates = [name for name in map(_name, root.dates()) if _lies_in(name, wanted)]
    found = root.rollups(dates)
    if not found:
        return EventLog(rows)
    rolled = _Rollups(spark, schema(), found, files)
    if not rolled.files:
        return EventLog(rows)
    rest = [file for file in files if _tail(file) not in rolled.files]
    others = None
    if rest:
        read = _reader(spark, root).parquet(*map(unquote, rest))
        others = _meant(_numbered_files(read), wanted, FILE)
    return EventLog(rows, in_group(_numbered_files(rolled.frame), wanted), others)


def doubled(
    spark: SparkSession, place: str, wanted: Range, *, without: Collection[str] = ()
) -> tuple[str, str] | None:
    """Two files of a folder that have an event in common; None when there are none."""
    from pyspark.sql import functions as F  # noqa: N812

    from sharecoord.analytics.census import FILE, same_rows

    frame, _ = _read_folder(spark, _Folder(spark, place), wanted, set(without))
    found = same_rows(_meant(frame.withColumn(FILE, F.col("_metadata.file_path")), wanted, FILE))
    if found is None:
        return None
    # The path is escaped, however many slashes it begins with.
    one, other = (plain_path(unquote(path).replace("file:///", "file:/")) for path in found)
    return one, other


def _numbered_files(frame: DataFrame) -> DataFrame:
    """Adds a number that stands for the file that a row is in."""
    from pyspark.sql import functions as F  # noqa: N812

    from sharecoord.analytics.census import FILE

    return frame.withColumn(FILE, F.xxhash64("_metadata.file_path"))


def _meant(frame: DataFrame, wanted: Range, *beside: str) -> DataFrame:
    """The rows of a folder's files that are meant, with the columns of events and those named."""
    if wanted.groups:
        from pyspark.sql import functions as F  # noqa: N812

        # Some writers escape the bytes of UTF-8, which Spark reads back one by one.
        bytewise = [name.encode().decode("latin-1") for name in wanted.groups]
        folder = F.col("group").isNull() | F.col("group").isin("", *wanted.groups, *bytewise)
        frame = frame.where(folder)
    return in_range(frame, wanted).select(*(column.name for column in COLUMNS), *beside)


def in_range(frame: DataFrame, wanted: Range) -> DataFrame:
    """The rows of a frame that are meant."""
    from pyspark.sql import functions as F  # noqa: N812

    if wanted.since:
        frame = frame.where(F.col("time") >= F.lit(wanted.since))
    if wanted.until:
        frame = frame.where(F.col("time") < F.lit(wanted.until))
    return in_group(frame, wanted)


def in_group(frame: DataFrame, wanted: Range) -> DataFrame:
    """The rows of a frame that are of the groups that are meant, or of none."""
    from pyspark.sql import functions as F  # noqa: N812

    if not wanted.groups:
        return frame
    none = F.col("group_id").isNull() | (F.col("group_id") == "")
    return frame.where(F.col("group_id").isin(*wanted.groups) | none)


def _reader(spark: SparkSession, root: _Folder) -> DataFrameReader:
    return spark.read.schema(f"{SCHEMA}, {_DIRECTORIES}").option("basePath", root.location)


def _read_folder(
    spark: SparkSession, root: _Folder, wanted: Range, left_out: set[str]
) -> tuple[DataFrame, list[str]]:
    """The frame, and the files that it reads, as Spark names them."""
    path = root.given
    chosen = [place for place in root.dates() if _meets(place, wanted)]
    if not chosen:
        raise EventsNotFoundError(_none_in_range(path, wanted))
    reader = _reader(spark, root)
    frame = reader.parquet(*chosen)
    files = frame.inputFiles()
    for file in _stubs(spark, root.location, chosen):
        # Spark passes over empty files without a word.
        if file not in left_out:
            raise EventsCorruptError(f"{file} is empty", file)
    kept = [file for file in files if plain_path(file) not in left_out]
    if not kept:
        why = "every file in it is unreadable" if files else "it has no Parquet files"
        raise EventsNotFoundError(f"--events {path}: {why} in the range")
    # Spark names files as URIs, and takes paths.
    whole = len(kept) == len(files)
    return frame if whole else reader.parquet(*map(unquote, kept)), kept


class _Rollups:
    """The rollups of files.

    Attributes:
        frame: What they hold.
        files: Ends of the names (`_tail`) of the files whose rollups these are.
    """

    def __init__(
        self, spark: SparkSession, schema_: str, places: Sequence[str], files: Iterable[str]
    ) -> None:
        """Looks for them.

        Args:
            spark: The session.
            schema_: Of the rollups, as DDL.
            places: Their folders, of dates.
            files: The files of the event log that are read.
        """
        base = places[0].rstrip("/").rpartition("/")[0]
        reader = spark.read.schema(schema_).option("basePath", base)
        self.frame = reader.parquet(*places)
        there = {_tail(file): file for file in self.frame.inputFiles()}
        self.files = there.keys() & {_tail(file) for file in files}
        if len(self.files) < len(there):
            mine = sorted(unquote(there[name]) for name in self.files)
            self.frame = reader.parquet(*mine) if mine else self.frame


def _tail(file: str) -> str:
    """Date, group and name of a file: the same for its rollups."""
    return "/".join(file.split("/")[-3:])


def _name(place: str) -> str:
    return place.rstrip("/").rpartition("/")[2]


def follow_events(spark: SparkSession, place: Place, wanted: Range = Range()) -> DataFrame:  # noqa: B008
    """The events of a folder or topic as a stream: what is there, and what comes.

    Args:
        spark: The session.
        place: As in `read_events`.
        wanted: Time range and groups.

    Raises:
        As `read_events`.
    """
    check_range(wanted)
    if isinstance(place, TopicPlace):
        return in_range(read_kafka(spark, place, wanted, stream=True), wanted)
    _Folder(spark, place)
    reader = spark.readStream.schema(f"{SCHEMA}, {_DIRECTORIES}")
    found = in_range(reader.parquet(place), wanted)
    return found.select(*(column.name for column in COLUMNS))


def read_kafka(
    spark: SparkSession,
    place: TopicPlace,
    wanted: Range = Range(),  # noqa: B008 - immutable
    *,
    stream: bool = False,
) -> DataFrame:
    """The events of a topic: by Spark's own connector when it is there, else by ours.

    A batch ends where the topic ends now, however often the frame is used. Spark's connector is
    used only with settings that Java's client has, too.

    Args:
        spark: The session.
        place: The topic.
        wanted: Its start decides where reading begins; rows outside are not left out here.
        stream: Whether the frame goes on with what comes.

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
    noted = source.register(spark)
    place.noted.append(noted)
    java = connector.java_settings(place.settings) if connector.is_there(spark) else None
    if java is not None:
        options = {"subscribe": place.topic, **{f"kafka.{key}": java[key] for key in java}}
        messages: DataFrame = reader.format("kafka").options(**options, **chosen).load()
        return connector.decoded(messages, skipped=noted if place.skip_corrupt else None)
    options = {**given, **chosen, "skip.corrupt": str(place.skip_corrupt).lower()}
    frame: DataFrame = reader.format(source.NAME).options(**options).load()
    return frame


def _stubs(spark: SparkSession, root: str, places: list[str]) -> list[str]:
    """Files that can not be Parquet because of their length; at most `CORRUPT_FILES_MAX`."""
    files = spark.read.format("binaryFile").option("basePath", root).load(places)
    # Of an empty file Spark knows the name, and makes no row.
    long_enough = files.where(files["length"] >= PARQUET_BYTES_MIN).select("path")
    whole = {plain_path(row[0]) for row in long_enough.toLocalIterator()}
    named = map(plain_path, files.inputFiles())
    return sorted(path for path in named if path not in whole)[:CORRUPT_FILES_MAX]


def plain_path(uri: str) -> str:
    """A file as people write it: without `file://`, percent signs as they stand on disk."""
    # Spark names files as URIs, three slashes and escaped, and as Hadoop's paths, neither.
    if uri.startswith("file:///"):
        return unquote(uri.removeprefix("file://"))
    return uri.removeprefix("file:")


class _Folder:
    """The folder on whatever file system it is, by Hadoop's own API."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.given = path
        self._spark = spark
        gateway: Any = spark.sparkContext._jvm
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        place = gateway.org.apache.hadoop.fs.Path(path)
        try:
            system = place.getFileSystem(configuration)
            if not system.exists(place):
                raise EventsNotFoundError(
                    f"--events {path}: there is no such folder; it is the DIR of the coordinator's "
                    "`events.sink: parquet:DIR`"
                )
            self._children = [
                (status.getPath().getName(), status.getPath().toString(), status.isDirectory())
                for status in system.listStatus(place)
            ]
        except AnalyticsError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the JVM throws
            raise EventsNotFoundError(f"--events {path}: {first_line(error)}") from None
        self.location: str = system.makeQualified(place).toString()

    def dates(self) -> list[str]:
        """What may hold events: folders, and files that lie here; hidden ones do not count.

        Raises:
            EventsNotFoundError: There is none.
        """
        seen = [full for name, full, _ in self._children if not name.startswith(("_", "."))]
        if not seen:
            raise EventsNotFoundError(
                f"--events {self.given}: the folder is empty; a coordinator closes its first file "
                "after `events.file.max.age.ms` (5 minutes)"
            )
        return sorted(seen)

    def rollups(self, dates: Collection[str]) -> list[str]:
        """The folders with rollups of these dates (`date=…`)."""
        if all(name != DIRECTORY for name, _, _ in self._children):
            return []
        beside = _Folder(self._spark, f"{self.given.rstrip('/')}/{DIRECTORY}")
        return sorted(full for name, full, _ in beside._children if name in dates)


def _meets(place: str, wanted: Range) -> bool:
    """Whether a folder's date meets the range; one without a date may hold anything."""
    start = _start_of(_name(place))
    if start is None:
        return True
    ends_before = wanted.since is not None and start + timedelta(days=1) <= wanted.since
    begins_after = wanted.until is not None and start >= wanted.until
    return not (ends_before or begins_after)


def _lies_in(name: str, wanted: Range) -> bool:
    """Whether all of a folder's date is meant."""
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


def _none_in_range(path: str, wanted: Range) -> str:
    since = wanted.since.isoformat() if wanted.since else "the beginning"
    until = wanted.until.isoformat() if wanted.until else "the end"
    return f"--events {path}: there are no files between {since} and {until} (UTC)"


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
        skip_corrupt: Whether the job goes on without such a file.
        findings: Where skipped files and messages are noted.
        place: What is read; a topic notes its messages by itself.

    Raises:
        EventsCorruptError: A file can not be read, and is not to be skipped.
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
    for pattern in _CORRUPT:
        found = pattern.search(text)
        if found:
            return plain_path(found.group(1))
    return None


def first_line(error: Exception) -> str:
    """What went wrong, without the JVM's stack."""
    lines: Iterable[str] = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:500]


def raise_job_error(error: Exception) -> NoReturn:
    """Says what Spark failed of; an error of ours that a task raised says it itself."""
    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        raise JobFailedError(ours.group(1).strip()) from error
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
