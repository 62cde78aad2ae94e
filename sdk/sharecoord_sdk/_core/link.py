"""The state of the connection: which address, when to try again, when it looks wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from .errors import KafkaError
from .notices import no_coordinator
from .status import StreamFailure, error_for_application

# A stream that lived so long was a good one: the next back-off starts small again.
_GOOD_STREAM_S: Final = 5.0
# Waits of a consumer that is refused, doubling: somebody must change a credential or a rule, and
# until then a coordinator must not be kept busy.
_REFUSED_BACKOFF_S: Final = 1.0
_REFUSED_BACKOFF_MAX_S: Final = 30.0


class Phase(Enum):
    #: No stream, and none wanted yet.
    IDLE = "idle"
    #: No stream; the next attempt is at `retry_at`.
    WAITING = "waiting"
    #: A stream was opened and the join sent; no answer yet.
    OPENING = "opening"
    #: The coordinator answered the join.
    JOINED = "joined"


def _rotated(addresses: Sequence[str], chance: Callable[[], float]) -> list[str]:
    """The same cyclic order from a random first element on."""
    first = int(chance() * len(addresses))
    return [*addresses[first:], *addresses[:first]]


class Link:
    """Addresses, attempts and back-off of one consumer.

    Args:
        addresses: Where coordinators may be. Each consumer begins at another one, by chance, and
            goes on in this order: those of a fleet get members alike.
        backoff_s: First wait before a reconnect.
        backoff_max_s: Longest wait.
        connect_timeout_s: Time for the answer to a join, and time without any coordinator after
            which the application is told.
        chance: Returns a number in [0, 1), for the first address and the jitter.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        backoff_s: float,
        backoff_max_s: float,
        connect_timeout_s: float,
        chance: Callable[[], float],
    ) -> None:
        self._addresses = _rotated(addresses, chance)
        # Addresses of a drain notice come first, once.
        self._redirects: list[str] = []
        self._next = 0
        self._backoff_s = backoff_s
        self._backoff_max_s = max(backoff_s, backoff_max_s)
        self._connect_timeout_s = connect_timeout_s
        self._chance = chance
        self._failures_in_row = 0
        self._away_since: float | None = None
        self._told_away = False
        self._opened_at = 0.0
        self._joined_at: float | None = None
        self._last_failure: StreamFailure | None = None
        self.phase = Phase.IDLE
        self.retry_at = 0.0
        self.address = self._addresses[0]
        #: Number of the current stream; what arrives from an older one is ignored.
        self.generation = 0

    @property
    def is_up(self) -> bool:
        return self.phase in (Phase.OPENING, Phase.JOINED)

    def may_open(self, now: float) -> bool:
        return self.phase is Phase.IDLE or (self.phase is Phase.WAITING and now >= self.retry_at)

    def open(self, now: float) -> str:
        if self._redirects:
            self.address = self._redirects.pop(0)
        else:
            self.address = self._addresses[self._next % len(self._addresses)]
            self._next += 1
        self.generation += 1
        self.phase = Phase.OPENING
        self._opened_at = now
        if self._away_since is None:
            self._away_since = now
        return self.address

    def joined(self, now: float) -> None:
        """Notes the coordinator's answer: its address stays the first choice."""
        self.phase = Phase.JOINED
        self._joined_at = now
        if self.address in self._addresses:
            self._next = self._addresses.index(self.address)
        self._redirects.clear()
        self._away_since = None
        self._told_away = False
        self._last_failure = None

    def failed(
        self, failure: StreamFailure, now: float, *, again: bool = False
    ) -> KafkaError | None:
        """Notes the end of the stream; returns the error to tell the application, if any.

        Args:
            failure: How it ended.
            now: The time.
            again: Whether another attempt with other credentials is the answer: then nothing is
                told, and the first such attempt is made at once.
        """
        self._last_failure = failure
        if self._joined_at is not None and now - self._joined_at >= _GOOD_STREAM_S:
            self._failures_in_row = 0
        self._joined_at = None
        if failure.is_silence and self.address in self._addresses:
            # A join there would wait for its whole time, while the next address may answer.
            self._next = self._addresses.index(self.address) + 1
        bounds = (self._backoff_s, self._backoff_max_s)
        if failure.is_refusal and not again:
            bounds = (_REFUSED_BACKOFF_S, _REFUSED_BACKOFF_MAX_S)
        self._wait(now, failure.retry_after_ms, *bounds)
        if self._away_since is None:
            self._away_since = now
        if again:
            if self._failures_in_row == 1:
                self.retry_at = now
            return None
        return error_for_application(failure, self.address)

    def hurry(self, now: float) -> None:
        """Makes the next attempt at once: there is reason to expect another answer."""
        self.retry_at = min(self.retry_at, now)

    def give_up_opening(self, now: float) -> bool:
        """Ends an attempt whose join has waited too long for its answer; whether there was one."""
        if self.phase is not Phase.OPENING or now - self._opened_at < self._connect_timeout_s:
            return False
        self._last_failure = StreamFailure("DEADLINE_EXCEEDED", "no answer to the join")
        self._wait(now, None, self._backoff_s, self._backoff_max_s)
        return True

    def redirect(self, addresses: list[str], now: float) -> None:
        """Plans an attempt at once, at a draining coordinator's addresses first."""
        self._redirects = _rotated(addresses, self._chance) or [self.address]
        self.phase = Phase.WAITING
        self.generation += 1
        self.retry_at = now

    def notice(self, now: float) -> KafkaError | None:
        """The error when no coordinator has answered for long: once per absence."""
        if self._told_away or self._away_since is None or self.phase is Phase.JOINED:
            return None
        waited_s = now - self._away_since
        if waited_s < self._connect_timeout_s:
            return None
        self._told_away = True
        return no_coordinator(self.address, self._last_failure, waited_s)

    def wake_at(self) -> float | None:
        if self.phase is Phase.WAITING:
            return self.retry_at
        if self.phase is Phase.OPENING:
            return self._opened_at + self._connect_timeout_s
        return None

    def _wait(
        self, now: float, retry_after_ms: int | None, backoff_s: float, backoff_max_s: float
    ) -> None:
        # The exponent is bounded so that no outage overflows it.
        wait_s = min(backoff_max_s, backoff_s * 2 ** min(self._failures_in_row, 30))
        self._failures_in_row += 1
        # Half fixed, half chance: many consumers that lost one coordinator spread out.
        wait_s = wait_s * (0.5 + self._chance() / 2)
        if retry_after_ms is not None:
            wait_s = max(wait_s, retry_after_ms / 1000)
        self.phase = Phase.WAITING
        self.retry_at = now + wait_s
