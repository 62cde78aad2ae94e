"""Limits for clients that nobody knows yet: how many may connect, and how often the log tells."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from sharecoord.runtime.status.status import ConnectionFigures

log = structlog.get_logger(__name__)

STRANGER_BYTES_MAX: Final = 64 << 10
"""Largest request before a client is known: one with a token has 17 KiB. A broker reads 512 KiB
(`sasl.server.max.receive.size`)."""

LINES_MAX: Final = 10
"""Lines of one kind that the log gets in a period; strangers must not fill a disk."""

PERIOD_S: Final = 10.0

_TLS: Final = (b"\x16\x03", "TLS, which this port does not speak: tls.cert.file is not set")
_HTTP: Final = tuple(
    (word, "HTTP: health and metrics are at management.port, gRPC is at listen.address")
    for word in (b"GET ", b"POST", b"HEAD", b"PUT ", b"PRI ", b"OPTI", b"DELE", b"CONN")
)


class Strangers:
    """Counts connections, and tells of those that are ended; no more lines than somebody reads."""

    def __init__(
        self, connections_max: int, address_connections_max: int, now_s: Callable[[], float]
    ) -> None:
        """Takes how many connections there may be, in all and of one address."""
        self._connections_max = connections_max
        self._address_connections_max = address_connections_max
        self.now_s = now_s
        self._by_host: Counter[str] = Counter()
        self._told: defaultdict[str, _Told] = defaultdict(_Told)

        self._refused = 0

    @property
    def figures(self) -> ConnectionFigures:
        """Connections that there are, and that were refused."""
        return ConnectionFigures(self.connections, self._refused)

    @property
    def connections(self) -> int:
        """How many there are."""
        return self._by_host.total()

    def come(self, host: str) -> bool:
        """Counts a connection from a host, unless there are as many as there may be."""
        why = ""
        if self.connections >= self._connections_max:
            why = f"there are {self.connections} (kafka.port.max.connections, or half of ulimit -n)"
        elif self._by_host[host] >= self._address_connections_max:
            why = (
                f"{self._by_host[host]} of them are from this address "
                "(kafka.port.max.connections.per.ip)"
            )
        if why:
            self._refused += 1
            self.tell(
                "Kafka port: too many connections, one more is refused", address=host, why=why
            )
            return False
        self._by_host[host] += 1
        return True

    def go(self, host: str) -> None:
        """A connection that was counted is over."""
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def tell(self, event: str, *, address: str, why: str) -> None:
        """Writes a line, unless there were many like it just now; a later one counts those."""
        now_s, told = self.now_s(), self._told[event]
        if now_s - told.period_s >= PERIOD_S:
            told.period_s, told.lines = now_s, 0
        if told.lines >= LINES_MAX:
            told.left_out += 1
            return
        more = {"left_out": told.left_out} if told.left_out else {}
        told.lines, told.left_out = told.lines + 1, 0
        log.info(event, address=address, why=why, **more)


@dataclass(slots=True)
class _Told:
    """Lines of one kind that the log has got."""

    period_s: float = -PERIOD_S
    lines: int = 0
    left_out: int = 0


def looks_like(received: bytes | bytearray) -> str:
    """The protocol of a client that sends this in place of a request of Kafka; "" = who knows."""
    for start, what in (_TLS, *_HTTP):
        if received.startswith(start):
            return f"the client speaks {what}"
    return ""
