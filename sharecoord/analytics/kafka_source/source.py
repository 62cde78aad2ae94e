"""`format("sharecoord")`: a Python Data Source of Spark over the events' topic, batch and stream.

    register(spark)
    spark.read.format("sharecoord").option("kafka.bootstrap.servers", "localhost:9092")
        .option("topic", "events").load()

The progress of a stream is the next offset of each partition: {"0": 23, "1": 7}. Spark runs this
code in processes of its own; they have no state in common.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from sharecoord.analytics.event_columns import SCHEMA
from sharecoord.analytics.kafka_source import planning
from sharecoord.analytics.kafka_source.options import (
    EARLIEST,
    LATEST,
    SourceOptions,
    parse_options,
)
from sharecoord.analytics.kafka_source.planning import Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from sharecoord.analytics.kafka_source.client import TopicClient

try:
    _limits: Any = importlib.import_module("pyspark.sql.streaming.datasource")
except ModuleNotFoundError:  # Spark 4.0 and 4.1 ask only for the newest offsets
    _limits = None
_AvailableNow: Any = getattr(_limits, "SupportsTriggerAvailableNow", object)

NAME: Final = "sharecoord"
NAMED_MAX: Final = 10_000
"""Most messages that are named when they are left out; further ones count as one, `more`."""
MORE: Final = "more"

Skipped = Accumulator[frozenset[str]]
"""Names of messages that were left out: a message counts once, however often it is read."""


class _Union(AccumulatorParam[frozenset[str]]):
    """Adds up sets of at most `NAMED_MAX` names."""

    def zero(self, value: frozenset[str]) -> frozenset[str]:
        return frozenset()

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: frozenset[str], value2: frozenset[str]
    ) -> frozenset[str]:
        both = value1 | value2
        return both if len(both) <= NAMED_MAX else frozenset(sorted(both)[:NAMED_MAX]) | {MORE}


class SharecoordSource(DataSource):
    """The data source; `register` binds it to a session."""

    skipped: Skipped | None = None
    """Takes the names of messages that are left out."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return NAME

    def schema(self) -> str:
        """The columns of the events; checks the options, before any task runs."""
        parse_options(dict(self.options))
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """A reader of a batch."""
        return BatchReader(parse_options(dict(self.options), stream=False), self.skipped)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """A reader of micro-batches."""
        return StreamReader(parse_options(dict(self.options), stream=True), self.skipped)


class _Reader:
    """Base of both readers; Spark sends it to the tasks."""

    def __init__(self, options: SourceOptions, skipped: Skipped | None) -> None:
        self.options, self.skipped = options, skipped

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of the offsets of a task."""
        from sharecoord.analytics.kafka_source.client import read_messages
        from sharecoord.analytics.kafka_source.decode import batches

        part: Part | None = partition.value
        if part is None:  # Spark's own partition, where there is no other
            return iter(())
        messages = (
            ((self.options.topic, part.partition, offset), value)
            for offset, value in read_messages(self.options, part)
        )
        return batches(messages, noting(self.skipped) if self.options.skip_corrupt else None)


def noting(skipped: Skipped | None) -> Callable[[str], None]:
    """A function that adds the name of a message that is left out."""

    def note(name: str) -> None:
        if skipped is not None:
            skipped.add(frozenset({name}))

    return note


class BatchReader(_Reader, DataSourceReader):
    """Reads [startingOffsets, endingOffsets) in tasks."""

    def partitions(self) -> list[InputPartition]:
        """The tasks: one per `max.offsets.per.partition`."""
        return _tasks(*batch_range(self.options), self.options)


class StreamReader(_Reader, DataSourceStreamReader, _AvailableNow):  # type: ignore[misc]
    """Reads micro-batches; Spark has this object in one process as long as the query runs."""

    def __init__(self, options: SourceOptions, skipped: Skipped | None) -> None:
        super().__init__(options, skipped)
        self._client: TopicClient | None = None
        self._target: dict[int, int] | None = None
        self._planned: dict[str, int] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """The offsets at which a new query begins."""
        return _texts(first_offsets(self.options, LATEST))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """The limit of `max.offsets.per.trigger`."""
        most = self.options.offsets_per_trigger
        return _limits.ReadAllAvailable() if most is None else _limits.ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Makes the present ends of the logs the end of the query."""
        self._target = self._newest()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """The end of the next micro-batch; Spark 4.0 and 4.1 pass neither its begin nor a limit."""
        begin = _numbers(start if start is not None else self._planned)
        ends = self._newest() if self._target is None else self._target
        # A partition that is gone, or a log that went back, is noticed by `partitions`.
        ends = {**begin, **{p: max(end, begin.get(p, 0)) for p, end in ends.items()}}
        no_limit = limit is not None and isinstance(limit, _limits.ReadAllAvailable)
        most = None if no_limit or not begin else self.options.offsets_per_trigger
        self._planned = _texts(planning.limited(begin, ends, most))
        return self._planned

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        first, last = _numbers(start), _numbers(end)
        if first == last:
            return []
        keep = self.options.fail_on_data_loss
        ends = self._ends()
        begin = planning.checked(self.options.topic, first, ends, fail_on_data_loss=keep)
        # New partitions begin at their first offset; partitions that are gone are not read.
        begin |= {p: ends[p][0] for p in last.keys() - first.keys() if p in ends}
        last = {p: max(end, begin[p]) for p, end in last.items() if p in begin}
        return _tasks(begin, last, self.options)

    def stop(self) -> None:
        """Ends the client."""
        if self._client is not None:
            self._client.close()

    def _newest(self) -> dict[int, int]:
        return {partition: end for partition, (_, end) in self._ends().items()}

    def _ends(self) -> planning.Ends:
        """The present logs; one client asks for them every second, for days."""
        from sharecoord.analytics.kafka_source.client import TopicClient

        if self._client is None:
            self._client = TopicClient(self.options)
        return self._client.ends()


def _tasks(
    start: Mapping[int, int], end: Mapping[int, int], options: SourceOptions
) -> list[InputPartition]:
    parts = planning.parts(start, end, options.offsets_per_partition)
    return [InputPartition(part) for part in parts]


def _texts(offsets: Mapping[int, int]) -> dict[str, int]:
    """Offsets as Spark stores them; always in one order, because it compares their text."""
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def _numbers(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}


# -- offsets from Kafka ---------------------------------------------------------------------------


def first_offsets(options: SourceOptions, otherwise: int) -> dict[int, int]:
    """Where reading begins, by partition; without an option at `otherwise` (earliest or latest)."""
    from sharecoord.analytics.kafka_source.client import TopicClient

    with closing(TopicClient(options)) as client:
        return _first(client, options, client.ends(), otherwise)


def batch_range(options: SourceOptions) -> tuple[dict[int, int], dict[int, int]]:
    """Starts and ends of a batch, by partition; no end lies before its start.

    Raises:
        OffsetOutOfRangeError: The log does not have the offsets of the options.
    """
    from sharecoord.analytics.kafka_source.client import TopicClient

    with closing(TopicClient(options)) as client:
        ends = client.ends()
        start = _first(client, options, ends, EARLIEST)
    end = planning.resolved(options.topic, options.ending, ends)
    keep = options.fail_on_data_loss
    start = planning.checked(options.topic, start, ends, fail_on_data_loss=keep)
    return start, {p: max(start[p], min(end[p], ends[p][1])) for p in start}


def _first(
    client: TopicClient, options: SourceOptions, ends: planning.Ends, otherwise: int
) -> dict[int, int]:
    if options.starting_time_ms is not None:
        return client.at_time(options.starting_time_ms, ends)
    wanted = otherwise if options.starting is None else options.starting
    return planning.resolved(options.topic, wanted, ends)


# -- a session ------------------------------------------------------------------------------------


def register(spark: SparkSession) -> Skipped:
    """Makes `format("sharecoord")` known to a session.

    Returns:
        The accumulator of the messages that `skip.corrupt=true` leaves out.
    """
    noted: Skipped = spark.sparkContext.accumulator(frozenset(), _Union())

    class Bound(SharecoordSource):
        """Is pickled by value, so that each session has its own accumulator."""

        skipped = noted

    spark.dataSource.register(Bound)
    return noted
