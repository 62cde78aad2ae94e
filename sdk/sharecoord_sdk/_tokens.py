"""Where tokens of OAUTHBEARER come from: the application's `oauth_cb`, or an identity provider."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import Any, Final, TypeVar

from . import _oidc
from ._core.credentials import BearerToken, SaslConfig, TokenOutcome
from ._core.texts import TOKEN_CHARS_MAX, is_token

T = TypeVar("T")
TokenSource = Callable[[], BearerToken]
AsyncTokenSource = Callable[[], Awaitable[BearerToken]]

_ASYNC_FIX: Final = "an async oauth_cb needs AsyncShareConsumer or AsyncAdminClient"


def token_source(sasl: SaslConfig | None) -> TokenSource:
    """The source for clients on threads; blocks for as long as the callback or provider does.

    Raises:
        TypeError: The callback is async.
    """
    if sasl is not None and inspect.iscoroutinefunction(sasl.oauth_cb):
        raise TypeError(_ASYNC_FIX)
    return partial(_fetch, sasl)


def outcome_of(source: TokenSource) -> TokenOutcome:
    """Fetches a token."""
    try:
        return source()
    except Exception as error:  # noqa: BLE001 - whatever the application's callback raises
        return error


def async_token_source(sasl: SaslConfig | None) -> AsyncTokenSource:
    """The source for clients of a loop: async callbacks run in the loop, plain ones in a thread."""

    async def fetch() -> BearerToken:
        if sasl is None or sasl.oauth_cb is None:
            return await _in_thread(partial(_fetch, sasl))
        ask = partial(sasl.oauth_cb, sasl.oauth_config)
        if inspect.iscoroutinefunction(sasl.oauth_cb):
            return read_answer(await ask())
        answer = await _in_thread(ask)
        return read_answer(await answer if inspect.isawaitable(answer) else answer)

    return fetch


async def outcome_of_async(source: AsyncTokenSource) -> TokenOutcome:
    """Fetches a token."""
    try:
        return await source()
    except Exception as error:  # noqa: BLE001 - whatever the application's callback raises
        return error


def _fetch(sasl: SaslConfig | None) -> BearerToken:
    assert sasl is not None, "tokens are fetched for OAUTHBEARER alone"
    if sasl.oidc is not None:
        return _oidc.fetch(sasl.oidc)
    assert sasl.oauth_cb is not None, "OAUTHBEARER was checked to have oauth_cb or oidc"
    answer = sasl.oauth_cb(sasl.oauth_config)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(_ASYNC_FIX)
    return read_answer(answer)


def read_answer(answer: Any) -> BearerToken:
    """Reads what `oauth_cb` returned: (token, expiry_s[, principal[, extensions]]).

    `expiry_s` is Unix time. Principal and extensions are for Kafka's SASL; a coordinator reads the
    token alone.

    Raises:
        TypeError: It is something else.
        ValueError: The token can not be shown, or has ended.
    """
    wanted = "oauth_cb must return (token, expiry_s[, principal[, extensions]])"
    if not isinstance(answer, tuple | list) or not 2 <= len(answer) <= 4:
        raise TypeError(f"{wanted}, not {type(answer).__name__}")
    text, expiry_s = answer[:2]
    if not isinstance(text, str) or isinstance(expiry_s, bool | str):
        raise TypeError(f"{wanted}: a str and a number")
    if not is_token(text):
        # Never the token itself: errors are logged.
        limit = f"1 to {TOKEN_CHARS_MAX} visible characters of ASCII"
        raise ValueError(f"the token of oauth_cb is not {limit}")
    life_s = float(expiry_s) - time.time()
    if math.isnan(life_s) or life_s <= 0:
        why = f"the token of oauth_cb ended {-life_s:.0f} s ago; expiry_s is Unix time in seconds"
        raise ValueError(why)
    return BearerToken(text, life_s)


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs work in a thread of its own: one that hangs must not hold up the end of the loop.

    The threads of a loop's executor are waited for when the loop is closed.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, raised = None, None
        try:
            result = context.run(work)
        except Exception as error:  # noqa: BLE001 - handed to the loop
            raised = error
        except BaseException as error:  # noqa: BLE001 - sys.exit ends this thread at the most
            raised = RuntimeError(f"oauth_cb raised {type(error).__name__}")
        try:
            loop.call_soon_threadsafe(settle, result, raised)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            pass

    context = copy_context()
    Thread(target=run, name="sharecoord-token", daemon=True).start()
    return await done
