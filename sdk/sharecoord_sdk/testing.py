"""Helps to test handlers: builds messages, runs one handler, reports what it did. No queue.

    outcome = run_handler(handle, make_message(value=b'{"id": 7}'))
    assert outcome.type is AcknowledgeType.ACCEPT

Tests that want a whole queue use the server's own `sharecoord.testing`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._core.outcomes import Outcome, Reject, outcome_of
from ._core.records import TIMESTAMP_CREATE_TIME, Message, Messages
from ._worker.binding import bind
from ._worker.handlers import is_async
from ._worker.options import outcomes_of, refuse_unfinished, returned_error

__all__ = ["make_message", "make_messages", "run_handler", "run_handler_async"]


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
) -> Outcome:
    """Runs a plain or async handler once.

    Args:
        handler: Takes a message or its value, or messages or their values if it handles batches.
        messages: What it is given.
        value: As of `Worker.handler`.
        on_bad_value: As of `Worker.handler`.

    Returns:
        Return = ACCEPT, `Retry` = RELEASE with delay, `Reject` = REJECT, another exception =
        RELEASE; returned ones count as raised. Of a batch whose messages have several outcomes the
        first one that is no ACCEPT. Inside a running event loop use `run_handler_async`.
    """
    call = _bound(handler, messages, value, on_bad_value)
    try:
        result = call(messages)
    except Exception as error:  # noqa: BLE001 - what a handler raises is its outcome
        return outcome_of(error)
    if inspect.isawaitable(result):
        return asyncio.run(_await(result, messages))
    return _returned(result, messages)


async def run_handler_async(
    handler: Callable[..., Any],
    messages: Message | Messages,
    *,
    value: Any = None,
    on_bad_value: Any = Reject,
) -> Outcome:
    """`run_handler` inside a running event loop."""
    call = _bound(handler, messages, value, on_bad_value)
    try:
        result = call(messages)
    except Exception as error:  # noqa: BLE001
        return outcome_of(error)
    if inspect.isawaitable(result):
        return await _await(result, messages)
    return _returned(result, messages)


def _bound(
    handler: Callable[..., Any], messages: object, value: Any, on_bad_value: Any
) -> Callable[[Any], Any]:
    name = getattr(handler, "__qualname__", None) or repr(handler)
    is_batch = not isinstance(messages, Message)
    binding = bind(handler, name=name, is_batch=is_batch, value=value, on_bad_value=on_bad_value)
    return binding.applied(handler, is_async=is_async(handler))


async def _await(result: Any, messages: Message | Messages) -> Outcome:
    try:
        found = await result
    except Exception as error:  # noqa: BLE001
        return outcome_of(error)
    return _returned(found, messages)


def _returned(result: Any, messages: Message | Messages) -> Outcome:
    try:
        refuse_unfinished(result)
        if isinstance(messages, Message):
            errors: Sequence[BaseException | None] = (returned_error(result),)
        else:
            errors = outcomes_of(result, len(messages)) or ()
    except (TypeError, ValueError) as nonsense:
        return outcome_of(nonsense)
    return outcome_of(next((each for each in errors if isinstance(each, Exception)), None))
