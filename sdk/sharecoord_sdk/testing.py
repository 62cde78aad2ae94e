"""Helps to test handlers: builds messages, runs one handler, reports what it did. No queue.

    outcome = run_handler(handle, make_message(value=b'{"id": 7}'))
    assert outcome.type is AcknowledgeType.ACCEPT

Tests that want a whole queue use the server's own `sharecoord.testing`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from ._core.outcomes import Outcome, Reject
from ._core.records import TIMESTAMP_CREATE_TIME, AcknowledgeType, Message, Messages
from ._worker.binding import with_values
from ._worker.failures import FailureRules
from ._worker.handlers import BATCH_MAX, Handler, read_handler
from ._worker.layers import Around, Middleware, with_layers
from ._worker.options import Backoff, Behaviour, FailureOutcome, RetryFunction, read_result
from ._worker.threads import Threads, call_plain

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["make_message", "make_messages", "run_handler", "run_handler_async"]

_log: Final = logging.getLogger("sharecoord_sdk")


def make_message(
    value: bytes | None = b"",
    *,
    key: bytes | None = None,
    topic: str = "topic",
    partition: int = 0,
    offset: int = 0,
    headers: list[tuple[str, bytes | None]] | None = None,
    timestamp_ms: int = 0,
    delivery_count: int = 1,
    checkpoint: bytes | None = None,
) -> Message:
    """Builds a message as `poll` returns it. It keeps what a handler stores by `checkpoint`.

    Raises:
        ValueError: A number that no record has.
    """
    for name, number, least in (
        ("partition", partition, 0),
        ("offset", offset, 0),
        ("delivery_count", delivery_count, 1),
    ):
        if number < least:
            raise ValueError(f"{name} must be at least {least}, not {number}")
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        key=key,
        value=value,
        headers=headers,
        timestamp=(TIMESTAMP_CREATE_TIME, timestamp_ms),
        delivery_count=delivery_count,
        checkpoint=checkpoint,
    )


def make_messages(
    values: Iterable[bytes | None],
    *,
    topic: str = "topic",
    partition: int = 0,
    first_offset: int = 0,
) -> Messages:
    """Builds a batch of messages with ascending offsets."""
    return Messages(
        make_message(value, topic=topic, partition=partition, offset=first_offset + index)
        for index, value in enumerate(values)
    )


def run_handler(
    handler: Callable[..., Any],
    messages: Message | Messages,
    *,
    value: Any = None,
    on_bad_value: Any = Reject,
    on_error: Mapping[type[BaseException], FailureOutcome] | None = None,
    retry: Backoff | RetryFunction | None = None,
    timeout: float | None = None,
    middleware: Sequence[Middleware] = (),
    worker: Worker | None = None,
) -> Outcome:
    """Runs a plain or async handler once, as a worker does, and tells what becomes of its record.

    Args:
        handler: Takes a message or its value, or messages or their values if it handles batches.
        messages: What it is given.
        value: As of `Worker.handler`.
        on_bad_value: As of `Worker.handler`.
        on_error: As of `Worker.handler`.
        retry: As of `Worker.handler`; a `Backoff` answers without jitter.
        timeout: As of `Worker.handler`.
        middleware: Outermost first.
        worker: Runs the handler as it is registered there (`@worker.handler`), with the worker's
            middleware and tracing, in place of the arguments above.

    Returns:
        What the worker would tell the coordinator. Of a batch whose messages have several outcomes
        the first one that is no ACCEPT. Inside a running event loop use `run_handler_async`.

    Raises:
        TypeError: An argument of another type, or a parameter of the handler that nobody fills.
        ValueError: A number out of bounds, or the worker does not have the handler.
    """
    given = _given_arguments(value, on_bad_value, on_error, retry, timeout, middleware)
    run = _Run(handler, messages, given, worker)
    if run.is_plain:
        return run.plain()
    return asyncio.run(run.coroutine())


async def run_handler_async(
    handler: Callable[..., Any],
    messages: Message | Messages,
    *,
    value: Any = None,
    on_bad_value: Any = Reject,
    on_error: Mapping[type[BaseException], FailureOutcome] | None = None,
    retry: Backoff | RetryFunction | None = None,
    timeout: float | None = None,
    middleware: Sequence[Middleware] = (),
    worker: Worker | None = None,
) -> Outcome:
    """`run_handler` inside a running event loop."""
    given = _given_arguments(value, on_bad_value, on_error, retry, timeout, middleware)
    run = _Run(handler, messages, given, worker)
    return run.plain() if run.is_plain else await run.coroutine()


def _given_arguments(*arguments: Any) -> dict[str, Any]:
    """The arguments that were given, by name."""
    names = ("value", "on_bad_value", "on_error", "retry", "timeout", "middleware")
    defaults = (None, Reject, None, None, None, ())
    found = zip(names, arguments, defaults, strict=True)
    return {name: each for name, each, default in found if each is not default}


class _Run:
    """A call of a handler."""

    def __init__(
        self,
        function: Callable[..., Any],
        messages: Message | Messages,
        given: dict[str, Any],
        worker: Worker | None,
    ) -> None:
        is_batch = not isinstance(messages, Message)
        self._messages = [messages] if isinstance(messages, Message) else list(messages)
        # As a worker gives them.
        self._argument: Any = self._messages if is_batch else messages
        self._middleware: Sequence[Middleware] = tuple(given.pop("middleware", ()))
        self._around: Around | None = None
        if worker is None:
            self._handler = _wired(function, given, is_batch=is_batch)
            return
        if given or self._middleware:
            name = next(iter(given), "middleware")
            raise TypeError(f"{name} and worker= do not go together: the worker has its own")
        self._handler = _registered(worker, function, self._messages)
        self._middleware, self._around = tuple(worker._middleware), worker._traced
        if bool(self._handler.batch) != is_batch:
            wanted = "batches: give make_messages" if self._handler.batch else "one: make_message"
            raise TypeError(f"handler {self._handler.name} takes {wanted}(...)")

    @property
    def is_plain(self) -> bool:
        is_bare = self._handler.behaviour.timeout_s is None and not self._middleware
        return is_bare and not self._handler.is_async

    def plain(self) -> Outcome:
        handler = self._handler if self._around is None else self._around(self._handler)
        try:
            result = copy_context().run(call_plain, handler.function, self._argument)
        except Exception as error:  # noqa: BLE001 - what a handler raises is its outcome
            return self._outcome(error)
        return self._returned(result)

    async def coroutine(self) -> Outcome:
        """Runs the handler with its layers."""
        threads = Threads(1, lambda: _tell(threads))
        handler = with_layers(
            self._handler, self._middleware, threads, lambda *_: None, self._around
        )
        try:
            # In a task and a context of its own.
            result = await asyncio.create_task(handler.function(self._argument))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._outcome(error)
        except Exception as error:  # noqa: BLE001 - what a handler raises is its outcome
            return self._outcome(error)
        finally:
            threads.stop()
        return self._returned(result)

    def _returned(self, result: object) -> Outcome:
        batch_of = len(self._messages) if self._handler.batch else None
        errors = read_result(result, batch_of)
        if errors is None or isinstance(errors, BaseException):
            return self._outcome(errors)
        at = next((at for at, error in enumerate(errors) if error is not None), None)
        return self._outcome(None if at is None else errors[at], at or 0)

    def _outcome(self, error: BaseException | None, at: int = 0) -> Outcome:
        if error is None:
            return Outcome(AcknowledgeType.ACCEPT)
        # In the middle of the jitter.
        rules = FailureRules(lambda: 0.5, lambda _, text, raised: _log.error(text, exc_info=raised))
        said = rules.settlement(self._handler, self._messages[at], error)
        raised = error if isinstance(error, Exception) else None
        return Outcome(AcknowledgeType(said.kind), *said.details, raised)


def _wired(function: Callable[..., Any], given: dict[str, Any], *, is_batch: bool) -> Handler:
    value, on_bad_value = given.get("value"), given.get("on_bad_value", Reject)
    behaviour = Behaviour(
        on_error={} if given.get("on_error") is None else given["on_error"],
        retry=given.get("retry"),
        timeout_s=given.get("timeout"),
    )
    made = read_handler("topic", function, BATCH_MAX if is_batch else None, behaviour)
    return with_values(made, value, on_bad_value)


def _registered(worker: Worker, function: object, messages: Sequence[Message]) -> Handler:
    found = [each for each in worker._handlers.values() if _is_made_of(each.function, function)]
    topic = messages[0].topic() if messages else None
    if len(found) > 1:
        found = [each for each in found if each.topic == topic]
    if not found:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise ValueError(f"the worker has no handler {name} (topic {topic!r}): register it there")
    return found[0]


def _is_made_of(registered: Any, function: object) -> bool:
    while registered != function:
        if not hasattr(registered, "__wrapped__"):
            return False
        registered = registered.__wrapped__
    return True


def _tell(threads: Threads) -> None:
    for job in threads.take_done():
        if job.future is not None and not job.future.cancelled():
            job.complete()
