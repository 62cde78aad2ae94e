"""OpenTelemetry: the context of a record's headers around its handler, and a span for its work.

Names are those of the semantic conventions for messaging. Only the API is needed; without the
application's SDK spans go nowhere, and the context is passed on all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from sharecoord_sdk._core.config import ConsumerConfig
from sharecoord_sdk._core.outcomes import Reject, Retry
from sharecoord_sdk._core.records import Message
from sharecoord_sdk._version import __version__

from .failures import text_of
from .handlers import Handler

LINKS_MAX: Final = 128
"""Most links of a batch's span; OpenTelemetry's SDKs keep as many by default."""


class Tracing:
    """Spans of one worker; `provider` of tracers, None = OpenTelemetry's global one.

    Raises:
        ImportError: opentelemetry-api is not installed.
    """

    def __init__(self, config: ConsumerConfig, provider: Any = None) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            text = "tracing needs opentelemetry-api: pip install 'sharecoord-sdk[tracing]'"
            raise ImportError(text) from error
        self._context, self._propagate, self._trace = context, propagate, trace
        self._tracer = trace.get_tracer("sharecoord_sdk", __version__, provider)
        self._same = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": config.group_id,
            "messaging.client.id": config.client_id,
        }

    def around(self, handler: Handler) -> Handler:
        function = handler.function

        if handler.is_async:

            async def call_async(argument: Any) -> Any:
                with self._span(handler, argument):
                    return await function(argument)

            return replace(handler, function=call_async)

        def call(argument: Any) -> Any:
            with self._span(handler, argument):
                return function(argument)

        return replace(handler, function=call)

    @contextmanager
    def _span(self, handler: Handler, argument: Any) -> Iterator[None]:
        trace = self._trace
        if handler.batch:
            parent, links = None, self._links(argument)
            attributes: dict[str, Any] = {"messaging.batch.message_count": len(argument)}
        else:
            parent, links = self._extracted(argument), []
            attributes = _of_message(argument)
        attributes["messaging.destination.name"] = handler.topic
        token = None if parent is None else self._context.attach(parent)
        try:
            with self._tracer.start_as_current_span(
                f"process {handler.topic}",
                kind=trace.SpanKind.CONSUMER,
                attributes={**self._same, **attributes},
                links=links,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    yield
                except BaseException as error:
                    self._failed(span, error)
                    raise
        finally:
            if token is not None:
                self._context.detach(token)

    def _extracted(self, message: Message) -> Any:
        headers = message.headers() or ()
        if isinstance(headers, Mapping):
            # As an application may set them.
            headers = list(headers.items())
        return self._propagate.extract(headers, getter=_GETTER)

    def _links(self, messages: Sequence[Message]) -> list[Any]:
        links: list[Any] = []
        for message in messages:
            if len(links) == LINKS_MAX:
                break
            found = self._trace.get_current_span(self._extracted(message)).get_span_context()
            if found.is_valid:
                links.append(self._trace.Link(found, _of_message(message)))
        return links

    def _failed(self, span: Any, error: BaseException) -> None:
        """Describes an error in its span. Retry is no failure of the work; Reject is one."""
        kind = type(error)
        if isinstance(error, Retry):
            span.set_attribute("sharecoord.outcome", "retry")
            return
        if isinstance(error, Reject):
            span.set_attribute("sharecoord.outcome", "reject")
        else:
            # An exception whose text can not be read must not hide itself by another error.
            with suppress(Exception):
                span.record_exception(error)
        span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text_of(error)))


def _of_message(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.destination.partition.id": str(message.partition()),
        "messaging.kafka.offset": message.offset(),
        "sharecoord.delivery_count": message.delivery_count(),
    }
    value = message.value()
    if isinstance(value, bytes):
        # Tests of handlers make messages with other values, too.
        found["messaging.message.body.size"] = len(value)
    key = message.key()
    if isinstance(key, bytes):
        try:
            found["messaging.kafka.message.key"] = key.decode("utf-8")
        except UnicodeDecodeError:
            # Attributes are text, and this key is none.
            pass
    if value is None:
        found["messaging.kafka.message.tombstone"] = True
    return found


class _Getter:
    """Reads a record's headers for a propagator."""

    def get(self, carrier: Sequence[tuple[str, bytes | str | None]], key: str) -> list[str] | None:
        found = [
            value if isinstance(value, str) else value.decode("utf-8", "replace")
            for name, value in carrier
            if value is not None and name.lower() == key.lower()
        ]
        return found or None

    def keys(self, carrier: Sequence[tuple[str, bytes | str | None]]) -> list[str]:
        return [name for name, _ in carrier]


_GETTER: Final[Any] = _Getter()


def read_tracing(tracing: object, config: ConsumerConfig) -> Callable[[Handler], Handler] | None:
    """The layer that `tracing` adds to handlers; None = none.

    Raises:
        TypeError: Neither a bool nor a provider of tracers.
        ImportError: See `Tracing`.
    """
    if tracing is False or tracing is None:
        return None
    if tracing is not True and not callable(getattr(tracing, "get_tracer", None)):
        raise TypeError(f"tracing must be a bool or a TracerProvider, not {type(tracing).__name__}")
    return Tracing(config, None if tracing is True else tracing).around
