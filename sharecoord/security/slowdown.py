"""Whoever shows wrong credentials again and again waits for each answer, by address.

Credentials are checked before anybody waits, so good ones never do, not even behind an address
that a wrong caller shares (a proxy, a host with many pods). What keeps tokens from being guessed is
their length; waiting keeps a wrong caller from costing much.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sharecoord.errors import LimitExceededError
from sharecoord.security.principals import UnixClock

FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 2.0
"""The wait doubles with each failure, up to this one: below the time-out of every client."""

FORGOTTEN_AFTER_MS: Final = 60_000
"""A time without a failure after which an address begins anew."""

ADDRESSES_MAX: Final = 4_096
"""Addresses with failures that are remembered, the latest: about 1 MB."""

WAITING_MAX: Final = 16
"""Callers of one address that wait at a time; others are refused at once."""

WAITING_TOTAL_MAX: Final = 1_024
"""Callers of all addresses together that wait at a time: each holds a call open."""

IPV6_PREFIX_BITS: Final = 64
"""What one host has at least: all addresses of such a network count as one."""

RETRY_AFTER_MS: Final = round(LONGEST_WAIT_S * 1000)


@dataclass(slots=True)
class _Failures:
    """Those of one address."""

    count: int = 0
    last_ms: int = 0
    waiting: int = 0


class Slowdown:
    """Makes callers wait after failures."""

    def __init__(self, now_ms: UnixClock, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._now_ms = now_ms
        self._sleep = sleep
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._waiting = 0

    async def failed(self, address: str) -> None:
        """Notes a failure; returns when the caller may hear of it.

        Raises:
            LimitExceededError: Too many callers of the address, or of all, wait already.
        """
        failures = self._noted(host_of(address))
        if failures.waiting >= WAITING_MAX or self._waiting >= WAITING_TOTAL_MAX:
            raise LimitExceededError(
                "too many calls with credentials that are not good; mend the credentials of the "
                "client, and wait before the next call",
                retry_after_ms=RETRY_AFTER_MS,
            )
        # A power of more than 16 would be cut to the longest wait anyway.
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(failures.count - 1, 16), LONGEST_WAIT_S)
        failures.waiting += 1
        self._waiting += 1
        try:
            await self._sleep(wait_s)
        finally:
            failures.waiting -= 1
            self._waiting -= 1

    def _noted(self, host: str) -> _Failures:
        now_ms = self._now_ms()
        failures = self._addresses.get(host)
        if failures is None:
            failures = self._addresses[host] = _Failures()
            if len(self._addresses) > ADDRESSES_MAX:
                self._addresses.popitem(last=False)
        elif now_ms - failures.last_ms >= FORGOTTEN_AFTER_MS:
            failures.count = 0
        self._addresses.move_to_end(host)
        failures.count += 1
        failures.last_ms = now_ms
        return failures


def host_of(address: str) -> str:
    """What failures are counted by: an IPv4 address, or the network of an IPv6 address.

    Args:
        address: `HOST`, `HOST:PORT` or `[HOST]:PORT`; of another text, as of a Unix socket, the
            text itself counts.
    """
    text = address.removeprefix("[").partition("]")[0] if address.startswith("[") else address
    if text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        host = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(host, ipaddress.IPv4Address):
        return str(host)
    if host.ipv4_mapped is not None:
        return str(host.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(host), IPV6_PREFIX_BITS), strict=False))
