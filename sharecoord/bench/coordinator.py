"""A coordinator under measurement: its counters, members, memory and written bytes."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sharecoord_sdk.admin import AdminClient, AdminError

from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import peak_rss_mb, rss_mb, written_bytes
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports

QUIET: Final = {"log.level": "warning"}
"""Settings of the coordinator under measurement; all others keep their defaults."""
_SCRAPE_TIMEOUT_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.05
_LOOK_SHARE: Final = 20
"""The watch on joins rests 20 times as long as it looks, or it would be what is measured."""
_LOOK_PAUSE_MAX_S: Final = 2.0
"""A machine without a free core answers after seconds; what is measured may be late by so much."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums since a coordinator started, which it updates together, once a second.

    They are transactions of the group commit, records handed out, and records whose lock was ended
    by an acknowledgement.
    """

    commits: float
    delivered: float
    settled: float

    def since(self, earlier: Counters) -> Counters:
        """The differences to an earlier reading."""
        return Counters(
            self.commits - earlier.commits,
            self.delivered - earlier.delivered,
            self.settled - earlier.settled,
        )

    @property
    def commits_per_1000(self) -> float | None:
        """Transactions per 1,000 settled records; None when nothing was settled."""
        return 1000 * self.commits / self.settled if self.settled else None


class MeasuredCoordinator(CoordinatorProcess):
    """A coordinator with a quiet log and a management server, whose metrics are read.

    It has the security that the measurement asks for, also in a run of the suites that has its own.
    """

    has_security = False

    def __init__(
        self,
        bootstrap_servers: str,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        program: list[str] | None = None,
    ) -> None:
        """Nothing is started yet; arguments as of `CoordinatorProcess`."""
        (self._port,) = free_ports(1)
        watched = {"management.host": LOOPBACK, "management.port": self._port}
        super().__init__(
            bootstrap_servers,
            directory,
            settings={**QUIET, **watched, **(settings or {})},
            program=program,
        )

    @property
    def rss_mb(self) -> float:
        """Resident memory in MB."""
        return rss_mb(self.pid)

    @property
    def peak_rss_mb(self) -> float:
        """Greatest resident memory so far, in MB."""
        return peak_rss_mb(self.pid)

    @property
    def written_bytes(self) -> int | None:
        """Bytes that it has had written to the disk; None where the kernel does not tell."""
        return written_bytes(self.pid)

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Adds its log to a BenchError of the block when the coordinator has ended."""
        try:
            yield
        except BenchError as error:
            if self.exit_code is not None:
                raise BenchError(f"the coordinator ended: {self.log_tail()}") from error
            raise

    def counters(self) -> Counters:
        """Reads `/metrics`; BenchError when the coordinator does not answer."""
        found = read_metrics(self._scrape())
        return Counters(
            commits=found.get("sharecoord_commits_total", 0.0),
            delivered=found.get("sharecoord_delivered_records_total", 0.0),
            settled=found.get("sharecoord_settled_records_total", 0.0),
        )

    def _scrape(self) -> str:
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=_SCRAPE_TIMEOUT_S)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"the coordinator's /metrics does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise BenchError(f"the coordinator's /metrics answers {answer.status}: {text[:200]}")
        return text


def read_metrics(text: str) -> dict[str, float]:
    """Sums of all samples by name, of the text that Prometheus reads."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


class JoinWatch:
    """Finds out when a group has all its members; asks less often where answers take long."""

    def __init__(self, coordinator: MeasuredCoordinator, group: str, members: int) -> None:
        """Asks once, so that no later answer waits for the connection; may raise BenchError."""
        self._coordinator = coordinator
        self._admin = AdminClient({"bootstrap.servers": coordinator.address})
        self._group = group
        self.members = members
        self._next_s = 0.0
        self.joined_ns: int | None = None
        """Moment on the monotonic clock at which all members were there; None before."""
        self.rss_mb = 0.0
        """Memory of the coordinator at that moment."""
        self._count()

    def close(self) -> None:
        """Lets go of the connection."""
        self._admin.close()

    def look(self) -> bool:
        """Asks, if it is time to; whether all members have joined. No answer means not yet."""
        began_s = time.monotonic()
        if self.joined_ns is None and began_s >= self._next_s:
            with contextlib.suppress(BenchError):
                if self._count() >= self.members:
                    self.joined_ns = time.monotonic_ns()
                    self.rss_mb = self._coordinator.rss_mb
            took_s = time.monotonic() - began_s
            pause_s = min(max(_LOOK_EVERY_S, took_s * _LOOK_SHARE), took_s + _LOOK_PAUSE_MAX_S)
            self._next_s = began_s + pause_s
        return self.joined_ns is not None

    def _count(self) -> int:
        try:
            (group,) = self._admin.describe_groups([self._group], members=False, offsets=False)
        except AdminError as error:
            raise BenchError(f"the coordinator does not describe {self._group}: {error}") from error
        return group.member_count
