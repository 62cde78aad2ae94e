"""Those whom nobody knows yet: how many may connect, and what the log says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

STRANGER_BYTES_MAX: Final = 64 << 10
"""Largest request before a client is known: one with a token has 17 KiB. A broker reads 512 KiB
(`sasl.server.max.receive.size`)."""

LINES_MAX: Final = 10
"""Lines of the log in a period; strangers must not fill a disk."""

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
        self._period_s = -PERIOD_S
        self._lines = self._left_out = 0

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
        """Writes a line, unless there were many just now; the next one tells how many were not."""
        now_s = self.now_s()
        if now_s - self._period_s >= PERIOD_S:
            self._period_s, self._lines = now_s, 0
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        log.info(event, address=address, why=why, **more)


def looks_like(received: bytes | bytearray) -> str:
    """What a client speaks that sends this in place of a request of Kafka; "" = who knows."""
    for start, what in (_TLS, *_HTTP):
        if received.startswith(start):
            return f"the client speaks {what}"
    return ""
