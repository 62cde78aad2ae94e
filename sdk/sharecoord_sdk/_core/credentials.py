"""What a client shows to be let in: a user and a password, or tokens that are renewed in time.

No threads, no clock and no network: a shell fetches tokens and tells the outcome. Times are seconds
of the shell's monotonic clock.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from .errors import KafkaError, KafkaException
from .tls_files import Pem

#: Of a token's life: from then on another one is fetched, as librdkafka does.
RENEW_PART: Final = 0.8
#: Least seconds between two tokens, however short their lives are.
RENEW_MIN_S: Final = 1.0
#: Longest wait after a token could not be had, as librdkafka's; the waits before double.
BACKOFF_MAX_S: Final = 10.0
#: The longest life of a token that is reckoned with: 68 years, librdkafka's bound.
LIFE_MAX_S: Final = float(2**31 - 1)


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """The settings of `sasl.oauthbearer.method=oidc`."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str
    ca: Pem


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """The settings `sasl.*`."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    oauth_config: str = field(default="", repr=False)
    oauth_cb: Callable[[str], Any] | None = None
    oidc: OidcConfig | None = None


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A token, and for how many seconds from when it was given it is good."""

    text: str = field(repr=False)
    life_s: float


#: What a fetch of a token ends with.
TokenOutcome = BearerToken | Exception


def token_error(error: Exception) -> KafkaError:
    """The error for a token that could not be had.

    Retriable when the network failed (OSError and its kinds, those of `requests` too), or when a
    KafkaException says so.
    """
    first = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if isinstance(first, KafkaError):
        text, retriable = first.str(), first.retriable()
    else:
        text, retriable = f"{type(error).__name__}: {error}", isinstance(error, OSError)
    return KafkaError(KafkaError._AUTHENTICATION, f"no token: {text}", retriable=retriable)


def metadata_of(header: str) -> tuple[tuple[str, str], ...]:
    """The headers of a call that shows `header`; none for ""."""
    return (("authorization", header),) if header else ()


class Tokens:
    """The token of OAUTHBEARER, and when the next one is fetched.

    While fetches fail the old token serves to its end.

    Args:
        backoff_s: First wait after a failed fetch; doubles.
    """

    def __init__(self, backoff_s: float) -> None:
        self._backoff_s = backoff_s
        self._token: BearerToken | None = None
        self._ends_at = -math.inf
        self._renew_at = -math.inf
        self._failures = 0
        # When the fetch began that is under way; None = none is.
        self._asked_at: float | None = None
        self._told_slow = False

    def text(self, now: float) -> str | None:
        """The token to show now, or None."""
        return None if self._token is None or now >= self._ends_at else self._token.text

    @property
    def fetch_at(self) -> float:
        """When to fetch a token; inf while a fetch is under way."""
        return math.inf if self._asked_at is not None else self._renew_at

    def began(self, now: float) -> None:
        """Notes that a fetch is under way."""
        self._asked_at = now
        self._told_slow = False

    def ended(self, outcome: TokenOutcome, now: float) -> None:
        """Notes what the fetch has brought."""
        asked_at = now if self._asked_at is None else self._asked_at
        self._asked_at = None
        if isinstance(outcome, BearerToken):
            life_s = min(outcome.life_s, LIFE_MAX_S)
            self._token, self._ends_at = outcome, asked_at + life_s
            self._renew_at = max(now + RENEW_MIN_S, asked_at + life_s * RENEW_PART)
            self._failures = 0
        else:
            self._back_off(now)

    def refused(self, now: float, *, again: bool) -> None:
        """Forgets the token, which a coordinator did not accept.

        Args:
            now: The time.
            again: Whether to fetch another one at once, and not after a back-off.
        """
        self._token = None
        if again:
            self._renew_at = -math.inf
        else:
            self._back_off(now)

    def slow_since(self, now: float, patience_s: float) -> float | None:
        """For how long a fetch has been under way without a token to show: said once."""
        if self._asked_at is None or self._told_slow or self.text(now) is not None:
            return None
        waited_s = now - self._asked_at
        if waited_s < patience_s:
            return None
        self._told_slow = True
        return waited_s

    def _back_off(self, now: float) -> None:
        # The exponent is bounded so that no outage overflows it.
        wait_s = min(BACKOFF_MAX_S, self._backoff_s * 2 ** min(self._failures, 30))
        self._failures += 1
        self._renew_at = now + wait_s


class Credentials:
    """What one client shows: the value of the header `authorization`.

    Args:
        sasl: The settings; None = nothing is shown.
        backoff_s: First wait after a failed fetch of a token.
    """

    def __init__(self, sasl: SaslConfig | None, backoff_s: float) -> None:
        self.sasl = sasl
        self.tokens: Tokens | None = None
        self._plain = ""
        if sasl is not None and sasl.mechanism == "PLAIN":
            self.set_plain(sasl.username, sasl.password)
        elif sasl is not None:
            self.tokens = Tokens(backoff_s)
        # What the stream showed when it was opened, and has shown last.
        self._opened_with = self._shown = ""
        # Whether a refusal was answered with another attempt.
        self._is_second_try = False

    def set_plain(self, username: str, password: str) -> None:
        """Replaces user and password; without PLAIN nothing shows them."""
        if self.sasl is not None and self.sasl.mechanism == "PLAIN":
            pair = base64.b64encode(f"{username}:{password}".encode()).decode("ascii")
            self._plain = f"Basic {pair}"

    def header(self, now: float) -> str | None:
        """What to show now, "" = nothing; None while there is no token."""
        if self.tokens is None:
            return self._plain
        text = self.tokens.text(now)
        return None if text is None else f"Bearer {text}"

    # -- of a stream ---------------------------------------------------------------------------

    def opened(self, header: str) -> None:
        """Notes what a new stream shows."""
        self._opened_with = self._shown = header

    def joined(self) -> None:
        """Notes that a coordinator has accepted what the stream shows."""
        self._is_second_try = False

    def take_new(self, now: float) -> str:
        """A token that the stream has not shown yet, to be sent on it; "" = there is none."""
        if self.tokens is None:
            return ""
        header = self.header(now)
        if header is None or header == self._shown:
            return ""
        self._shown = header
        return header

    def refused(self, now: float, *, was_joined: bool) -> bool:
        """Notes that a stream ended because of its credential; whether to join again at once.

        That is done once: with another token or, of a stream that was joined, with what is at hand
        by now, since the files of a certificate may be new. A credential that is refused after
        that is the application's matter.
        """
        first, self._is_second_try = not self._is_second_try, True
        if self.tokens is None:
            return was_joined and first
        if self.header(now) in (None, self._opened_with):
            self.tokens.refused(now, again=first)
        return first
