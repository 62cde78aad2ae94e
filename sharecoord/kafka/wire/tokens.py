"""Tokens of OAUTHBEARER: one for all brokers, renewed before it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from sharecoord.errors import InvalidConfigError, SharecoordError, UnauthenticatedError
from sharecoord.kafka.wire.sasl import checked_extensions

log = structlog.get_logger(__name__)

RENEW_PART: Final = 0.8
"""Of a token's life: from then on it is renewed."""

RENEW_WAIT_S: Final = 1.0
"""Longest wait for a renewal while the old token is still good: requests stand behind it."""

BACKOFF_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
"""Who issues tokens is asked again so soon after a failure, doubling."""

LIFE_MAX_S: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and how long it is good from when it was given."""

    text: str = field(repr=False)
    life_s: float
    extensions: Mapping[str, str] = field(default_factory=dict)


Issue = Callable[[], Awaitable[Token]]
"""Gives a new token. A SharecoordError says why not."""


class Tokens:
    """The token that all connections show.

    It is renewed when it is asked for in the last fifth of its life; all who ask meanwhile share
    one renewal. While renewals fail the old token serves to its end, and nobody is asked again
    before the back-off is over.
    """

    def __init__(self, issue: Issue) -> None:
        self._issue = issue
        self._token: Token | None = None
        self._renew_at_s = self._ends_at_s = self._ask_at_s = float("-inf")
        self._failures = 0
        self._failure: SharecoordError | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def current(self) -> Token:
        """The token to show now.

        Raises:
            UnauthenticatedError: Who issues tokens refuses to.
            KafkaUnavailableError: Who issues tokens does not answer.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        token = self._token if now_s < self._ends_at_s else None
        if token is not None and now_s < self._renew_at_s:
            return token
        if self._renewal is None and now_s >= self._ask_at_s:
            self._renewal = loop.create_task(self._renew(), name="kafka token")
        if self._renewal is not None:
            timeout_s = None if token is None else RENEW_WAIT_S
            await asyncio.wait({self._renewal}, timeout=timeout_s)
        if self._token is not None and loop.time() < self._ends_at_s:
            return self._token
        raise self._failure or UnauthenticatedError("no token of OAUTHBEARER is there any more")

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        asked_at_s = loop.time()
        try:
            token = await self._issue()
        except SharecoordError as error:
            self._failed(error)
        else:
            if self._failures:
                log.info("kafka tokens are issued again")
            self._token, self._failures, self._failure = token, 0, None
            self._renew_at_s = asked_at_s + token.life_s * RENEW_PART
            self._ends_at_s = asked_at_s + token.life_s
        finally:
            self._renewal = None

    def _failed(self, error: SharecoordError) -> None:
        backoff_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(self._failures, 10))
        self._ask_at_s = asyncio.get_running_loop().time() + backoff_s
        if not self._failures:
            log.warning("kafka token not issued, asking again with back-off", why=error.message)
        self._failures += 1
        self._failure = error

    def close(self) -> None:
        """Ends a renewal that is under way."""
        if self._renewal is not None:
            self._renewal.cancel()


# -- tokens without a signature -------------------------------------------------------------------

_NAMES: Final = ("principalClaimName", "principal", "scopeClaimName", "scope", "lifeSeconds")
_EXTENSION: Final = "extension_"
_CONFIG: Final = "kafka.sasl.oauthbearer.config"


def unsecured(config: str, *, wall_s: Callable[[], float] = time.time) -> Issue:
    """Issues tokens that nobody signs (for tests of brokers), as librdkafka's builtin does.

    Args:
        config: `name=value` pairs with spaces between them.
        wall_s: The time of day.

    Raises:
        InvalidConfigError: A pair is unknown or malformed.
    """
    found, extensions = _pairs(config)
    principal = found.get("principal")
    if not principal:
        raise InvalidConfigError(f"{_CONFIG} has no principal=…")
    try:
        life_s = int(found.get("lifeSeconds", "3600"))
        checked_extensions(extensions)
    except ValueError as error:
        raise InvalidConfigError(f"{_CONFIG}: {error}") from None
    if not 0 < life_s <= LIFE_MAX_S:
        raise InvalidConfigError(f"{_CONFIG}: lifeSeconds={life_s} is not within 1 to {LIFE_MAX_S}")

    async def issue() -> Token:
        now_s = wall_s()
        claims: dict[str, Any] = {
            found.get("principalClaimName", "sub"): principal,
            "iat": now_s,
            "exp": now_s + life_s,
        }
        if scope := found.get("scope"):
            claims[found.get("scopeClaimName", "scope")] = scope.split(",")
        return Token(f"{_part({'alg': 'none'})}.{_part(claims)}.", life_s, extensions)

    return issue


def _pairs(config: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    found: dict[str, str] = {}
    extensions: dict[str, str] = {}
    for pair in config.split():
        name, equals, value = pair.partition("=")
        table, key = found, name
        if name.startswith(_EXTENSION):
            table, key = extensions, name.removeprefix(_EXTENSION)
        elif name not in _NAMES:
            known = ", ".join((*_NAMES, f"{_EXTENSION}…"))
            raise InvalidConfigError(f"{_CONFIG} has {name!r}; it may have {known}")
        if not equals or not value or key in table:
            raise InvalidConfigError(f"{_CONFIG}: {name} has no value, or two")
        table[key] = value
    return found, extensions


def _part(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")
