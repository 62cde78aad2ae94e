"""Layers around a handler's function: middleware, a time limit, a thread.

Outermost first: a span, middleware in the order in which it was registered, the time limit, the
handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from .handlers import Handler
from .threads import Job, Threads

AsyncFunction = Callable[[Any], Awaitable[Any]]
Middleware = Callable[[Any, AsyncFunction], Awaitable[Any]]
Around = Callable[[Handler], Handler]


def with_layers(
    handler: Handler,
    middleware: Sequence[Middleware],
    threads: Threads,
    on_stuck: Callable[[Handler, Any], None],
    around: Around | None,
) -> Handler:
    """The handler with its layers; without any it stays as it is.

    Args:
        handler: The handler.
        middleware: Outermost first.
        threads: For plain functions.
        on_stuck: Called with handler and argument when a plain function is not waited for any more.
        around: Adds the outermost layer.
    """
    timeout_s = handler.behaviour.timeout_s
    if timeout_s is not None or middleware:
        function: AsyncFunction = handler.function
        if not handler.is_async:
            function = _on_thread(handler, threads, on_stuck)
        if timeout_s is not None:
            function = _limited(handler, function, timeout_s)
        for each in reversed(middleware):
            function = _in_middleware(each, function)
        handler = replace(handler, function=function, is_async=True)
    return handler if around is None else around(handler)


def _on_thread(
    handler: Handler, threads: Threads, on_stuck: Callable[[Handler, Any], None]
) -> AsyncFunction:
    async def call(argument: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        threads.submit(Job(handler.function, argument, (), copy_context(), future))
        try:
            return await future
        except asyncio.CancelledError:
            # The thread goes on, and nobody waits for it.
            future.cancel()
            on_stuck(handler, argument)
            raise

    return call


def _limited(handler: Handler, function: AsyncFunction, timeout_s: float) -> AsyncFunction:
    async def call(argument: Any) -> Any:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await function(argument)
        except TimeoutError:
            if limit.expired():
                text = f"handler {handler.name} took longer than timeout = {timeout_s:g} s"
                raise TimeoutError(text) from None
            raise

    return call


def _in_middleware(middleware: Middleware, function: AsyncFunction) -> AsyncFunction:
    async def call(argument: Any) -> Any:
        return await middleware(argument, function)

    return call
