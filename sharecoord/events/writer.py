"""The process that writes events: `python -m sharecoord.events.writer`, started by a coordinator.

It ends when its standard input ends, and only then: signals to the process group are for the
coordinator, which closes the pipe when it has said its last.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sharecoord.config.endpoints import EventsSinkKind
from sharecoord.errors import InvalidConfigError, SharecoordError
from sharecoord.events.counts import WriterSink
from sharecoord.events.frames import LENGTH, FrameReader, WriterSettings
from sharecoord.observability.logs import configure_logging
from sharecoord.observability.standard_error import guard_standard_error

READ_BYTES: Final = 1 << 20
"""Bytes that are read from the pipe at a time: as many as fit into it."""

_IGNORED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> int:
    """Serves until the pipe is closed; returns the exit code."""
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    # The coordinator has blocked these signals until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    answers = os.dup(sys.stdout.fileno())
    # All other output goes to standard error: it is no answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    payload = _first_frame()
    if payload is None:
        return 0
    settings = WriterSettings.read(payload)
    guard_standard_error()
    configure_logging(level=settings.log_level, json=settings.log_json)
    try:
        sink = open_sink(settings)
    except SharecoordError as error:
        _say(answers, {"error": error.reason, "text": error.message})
        return 1
    _say(answers, {"ready": True})
    serve(sink, lambda counts: _say(answers, counts))
    return 0


def open_sink(settings: WriterSettings) -> WriterSink:
    """The sink that the settings name.

    Raises:
        InvalidConfigError: pyarrow is missing, or the place can not be used.
        KafkaUnavailableError: Kafka does not answer.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidConfigError(
            f"events.sink={settings.kind}:{settings.target} needs pyarrow, which can not be "
            f"loaded ({error}): pip install 'sharecoord[events]'"
        ) from error
    if settings.kind == EventsSinkKind.KAFKA:
        from sharecoord.events.kafka_topic import KafkaSink
        from sharecoord.kafka.event_producer import EventProducer
        from sharecoord.kafka.wire.held_files import HeldFiles

        held = HeldFiles(settings.kafka, settings.files)
        topic = EventProducer(held.settings, settings.target)
        topic.open()
        return KafkaSink(
            topic,
            name=f"kafka:{settings.target}",
            coordinator_id=settings.coordinator_id,
        )
    from sharecoord.events.parquet_sink import ParquetSink

    return ParquetSink(
        Path(settings.target).expanduser().absolute(),
        coordinator_id=settings.coordinator_id,
        file_max_bytes=settings.file_max_bytes,
        file_max_age_ms=settings.file_max_age_ms,
    )


def serve(sink: WriterSink, say: Callable[[object], None]) -> None:
    """Writes the rows that come until the pipe ends; `say` tells the coordinator the counts."""
    said: tuple[int, int, int] | None = None
    source, is_open = sys.stdin.fileno(), True
    frames = FrameReader()
    payloads: list[bytes] = []
    while True:
        for payload in payloads:
            sink.take(payload)
        if is_open:
            sink.work()
        else:
            sink.close()
        counts = (sink.counts.settled, sink.counts.written, sink.counts.lost)
        if counts != said:
            say(counts)
            said = counts
        if not is_open:
            return
        payloads = []
        if select.select((source,), (), (), sink.wait_s())[0]:
            data = os.read(source, READ_BYTES)
            is_open = bool(data)
            payloads = frames.feed(data)


def _first_frame() -> bytes | None:
    """The payload of the pipe's first frame; None when the pipe ends before the frame does."""
    length = _read(LENGTH.size)
    return None if length is None else _read(LENGTH.unpack(length)[0])


def _read(size: int) -> bytes | None:
    """The next bytes of the pipe; None when it ends before."""
    data = b""
    while len(data) < size:
        more = os.read(sys.stdin.fileno(), size - len(data))
        if not more:
            return None
        data += more
    return data


def _say(descriptor: int, answer: object) -> None:
    """Writes an answer for the coordinator; if it has died, nothing."""
    try:
        os.write(descriptor, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        pass


if __name__ == "__main__":
    raise SystemExit(main())
