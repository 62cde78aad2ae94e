"""Which reader reads: `kafka.reader`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from sharecoord_batches.opener import HAS_NATIVE

from sharecoord.config.process_settings import ReaderKind
from sharecoord.errors import InvalidConfigError
from sharecoord.ingest.raw_reader import RawLogReader
from sharecoord.kafka.refusals import Refusals
from sharecoord.kafka.wire.keys import Settings, beyond

if TYPE_CHECKING:
    from sharecoord.ingest.log_reader import KafkaLogReader

log = structlog.get_logger(__name__)


def make_reader(
    kind: ReaderKind,
    settings: Settings,
    refusals: Refusals,
    *,
    may_open: Callable[[], bool] = lambda: True,
) -> RawLogReader | KafkaLogReader:
    """The reader that the setting wants.

    Raises:
        InvalidConfigError: `raw` is wanted, and another setting needs librdkafka.
    """
    needs_librdkafka = None if kind is ReaderKind.LIBRDKAFKA else beyond(settings)
    if kind is ReaderKind.RAW and needs_librdkafka is not None:
        raise InvalidConfigError(
            f"kafka.reader is raw, and only librdkafka can follow kafka.{needs_librdkafka}. "
            "Remove one of the two, or set kafka.reader to auto",
            metadata={"key": "kafka.reader"},
        )
    if kind is ReaderKind.LIBRDKAFKA or needs_librdkafka is not None:
        # librdkafka is loaded with it: 20 MB.
        from sharecoord.ingest.log_reader import KafkaLogReader

        return KafkaLogReader(settings, refusals, may_open=may_open)
    return RawLogReader(settings, refusals, may_open=may_open)


def say_who_reads(kind: ReaderKind, settings: Settings) -> None:
    """Says in the log which reader `make_reader` makes, and why."""
    needs_librdkafka = beyond(settings)
    if kind is ReaderKind.LIBRDKAFKA or needs_librdkafka is not None:
        is_wanted = kind is ReaderKind.LIBRDKAFKA
        why = "kafka.reader" if is_wanted else f"kafka.{needs_librdkafka}"
        log.info("records are read by librdkafka", because_of=why)
    else:
        log.info("records are read as raw batches", opened_by="C" if HAS_NATIVE else "Python")
