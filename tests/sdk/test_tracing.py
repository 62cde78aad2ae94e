"""OpenTelemetry around handlers: whose trace they run in, and what their spans say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from sharecoord_sdk import Message, Reject, Retry, Worker
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk._worker import tracing

from tests.sdk.fake_coordinator import make_batch
from tests.sdk.worker_running import Make, wait_covered

CONF = {"bootstrap.servers": "localhost:7070", "group.id": "g"}
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
SPAN = 0x00F067AA0BA902B7


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(spans))
    yield made
    made.shutdown()


def traced_batch(count: int, *, traces: bool = True) -> types_pb.RecordBatch:
    """Records whose producer's span is SPAN plus their row."""
    batch = make_batch([b"%d" % row for row in range(count)])
    batch.keys.extend([b"key"] * count)
    for row in range(count) if traces else ():
        headers = batch.headers.add(index=row).headers
        parent = f"00-{TRACE:032x}-{SPAN + row:016x}-01"
        headers.add(key="traceparent", value=parent.encode())
        headers.add(key="tracestate", value=b"shop=7")
        headers.add(key="baggage", value=b"tenant=acme")
        headers.add(key="nothing")
    return batch


def handler_of(kind: str, work: Callable[[Any], None]) -> Callable[[Any], Any]:
    async def coroutine(argument: Any) -> None:
        work(argument)

    return coroutine if kind == "async" else work


def finished(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    found = list(spans.get_finished_spans())
    return sorted(found, key=lambda s: int((s.attributes or {}).get("messaging.kafka.offset", 0)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_handler_runs_in_the_trace_of_its_record(
    kind: str, make: Make, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    running, seen = make(tracing=provider), list[Any]()

    def work(message: Message) -> None:
        context = trace.get_current_span().get_span_context()
        seen.append((context.trace_id, context.span_id, context.trace_state.get("shop")))
        assert baggage.get_baggage("tenant") == "acme"

    running.worker.handler("t")(handler_of(kind, work))
    stream = running.start()
    stream.send(traced_batch(2))
    assert wait_covered(stream, 2) == [0, 1]
    running.stop()
    first, second = finished(spans)
    assert {(s.context.trace_id, s.context.span_id, "7") for s in (first, second)} == set(seen)
    assert first.parent is not None
    assert second.parent is not None
    assert (first.parent.trace_id, first.parent.span_id) == (TRACE, SPAN)
    assert second.parent.span_id == SPAN + 1
    assert (first.name, first.kind, first.status.status_code) == (
        "process t",
        SpanKind.CONSUMER,
        StatusCode.UNSET,
    )
    assert dict(first.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "g",
        "messaging.client.id": "sharecoord-sdk",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "key",
        "messaging.message.body.size": 1,
        "sharecoord.delivery_count": 1,
    }
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_nothing_of_one_record_is_left_for_the_next(
    kind: str, make: Make, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    running, seen = make(tracing=provider, concurrency=1), list[Any]()

    def work(message: Message) -> None:
        seen.append(baggage.get_baggage("tenant"))

    running.worker.handler("t")(handler_of(kind, work))
    stream = running.start()
    batch = traced_batch(4, traces=False)
    batch.headers.add(index=1).headers.add(key="baggage", value=b"tenant=acme")
    stream.send(batch)
    assert wait_covered(stream, 4)
    running.stop()
    assert seen == [None, "acme", None, None]
    assert [span.parent for span in finished(spans)] == [None] * 4


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_batch_has_one_span_with_links(
    kind: str, make: Make, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    running = make(tracing=provider)
    running.worker.handler("t", batch=10)(handler_of(kind, lambda messages: None))
    stream = running.start()
    stream.send(traced_batch(3))
    assert wait_covered(stream, 3)
    running.stop()
    (span,) = finished(spans)
    assert span.parent is None
    assert [link.context.span_id for link in span.links] == [SPAN, SPAN + 1, SPAN + 2]
    assert [(link.attributes or {})["messaging.kafka.offset"] for link in span.links] == [0, 1, 2]
    assert (span.attributes or {})["messaging.batch.message_count"] == 3


def test_links_are_bounded(
    make: Make,
    spans: InMemorySpanExporter,
    provider: TracerProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tracing.LINKS_MAX == 128
    monkeypatch.setattr(tracing, "LINKS_MAX", 2)
    running = make(tracing=provider)
    running.worker.handler("t", batch=10)(lambda messages: None)
    stream = running.start()
    stream.send(traced_batch(5))
    assert wait_covered(stream, 5)
    running.stop()
    (span,) = finished(spans)
    assert len(span.links) == 2


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(
    ("error", "status", "error_type", "outcome", "events"),
    [
        (RuntimeError("bug"), (StatusCode.ERROR, "bug"), "builtins.RuntimeError", None, 1),
        (
            UnreadableError(),
            (StatusCode.ERROR, "(its text can not be read)"),
            f"{__name__}.UnreadableError",
            None,
            0,
        ),
        (Retry(after_s=1), (StatusCode.UNSET, None), None, "retry", 0),
        (
            Reject("no order"),
            (StatusCode.ERROR, "no order"),
            "sharecoord_sdk._core.outcomes.Reject",
            "reject",
            0,
        ),
    ],
)
def test_what_a_handler_raises_is_in_its_span(
    kind: str,
    error: Exception,
    status: Any,
    error_type: str | None,
    outcome: str | None,
    events: int,
    make: Make,
    spans: InMemorySpanExporter,
    provider: TracerProvider,
) -> None:
    running = make(tracing=provider)

    def work(message: Message) -> None:
        raise error

    running.worker.handler("t")(handler_of(kind, work))
    stream = running.start()
    stream.send(traced_batch(1))
    assert wait_covered(stream, 1)
    running.stop()
    (span,) = finished(spans)
    attributes = span.attributes or {}
    assert (span.status.status_code, span.status.description) == status
    assert (attributes.get("error.type"), attributes.get("sharecoord.outcome")) == (
        error_type,
        outcome,
    )
    assert len(span.events) == events
    assert stream.acks()[0].kind == ("REJECT" if isinstance(error, Reject) else "RELEASE")


def test_keys_that_are_no_text_and_tombstones(
    make: Make, spans: InMemorySpanExporter, provider: TracerProvider
) -> None:
    running = make(tracing=provider)
    running.worker.handler("t")(lambda message: None)
    stream = running.start()
    batch = make_batch([None])
    batch.keys.append(b"\xff")
    stream.send(batch)
    assert wait_covered(stream, 1)
    running.stop()
    (span,) = finished(spans)
    attributes = span.attributes or {}
    assert "messaging.kafka.message.key" not in attributes
    assert attributes["messaging.kafka.message.tombstone"] is True


@pytest.mark.parametrize("batch", [None, 5])
@pytest.mark.parametrize("value", [5, {"id": 7}, None, "text"])
def test_middleware_may_set_any_value(
    value: Any,
    batch: int | None,
    make: Make,
    spans: InMemorySpanExporter,
    provider: TracerProvider,
) -> None:
    running, seen = make(tracing=provider), list[Any]()

    @running.worker.middleware
    async def decode(argument: Any, call_next: Callable[[Any], Any]) -> Any:
        for message in argument if batch else [argument]:
            message.set_value(value)
            message.set_key(value)
            message.set_headers({"a": "dict"})
        return await call_next(argument)

    @running.worker.handler("t", batch=batch)
    async def handle(argument: Any) -> None:
        seen.extend(each.value() for each in (argument if batch else [argument]))

    stream = running.start()
    stream.send(traced_batch(2))
    assert wait_covered(stream, 2)
    running.stop()
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}
    assert seen == [value] * 2
    assert finished(spans)


def test_wrong_tracing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="tracing must be a bool or a TracerProvider, not str"):
        Worker(CONF, tracing="yes")
    Worker(CONF, tracing=True)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ImportError, match=r"pip install 'sharecoord-sdk\[tracing\]'"):
        Worker(CONF, tracing=True)
    Worker(CONF)
