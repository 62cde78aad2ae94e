"""A crew with members of the SDK and unmodified share consumers at the Kafka port, in one group."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sharecoord.demo.ledger import Outcome, Verb
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.records import LEAVING, LockEntry, LockWriter
from tests.java_members import compiled

SDK: Final = "sdk"
"""A kind of members; the others are a client and its mode, such as `java implicit`."""

KAFKA_POLL_RECORDS: Final = 50


class KafkaCrew(Crew):
    """Workers of several kinds.

    The locks of a share consumer end with its connection, whoever ends that (KIP-932): when its
    process is killed, and when its coordinator is (`outage`).
    """

    def __init__(
        self, directory: Path, *, kafka_address: str, lock_ms: int, **options: Any
    ) -> None:
        """Nothing is started yet.

        Args:
            directory: As of a `Crew`, and so are the options.
            kafka_address: `bootstrap.servers` of those at the Kafka port.
            lock_ms: The group's lock duration.
            options: See `Crew`.
        """
        super().__init__(directory, **options)
        self.kinds: dict[str, str] = {}
        """By worker, those that have ended as well."""
        self.load: Load | None = None
        """What produces for it, if its maker says so."""
        self._kafka_address = kafka_address
        self._release_each = options.get("release_each", 0)
        self._kafka_argv = [
            *(sys.executable, "-m", "tests.acceptance.chaos.kafka_worker"),
            *("--group", self.group, "--topic", self.topic, "--lock-ms", str(lock_ms)),
            *("--work-ms", str(options.get("work_ms", 0.0))),
            *("--poll-records", str(KAFKA_POLL_RECORDS)),
            *("--release-each", str(self._release_each)),
        ]
        self._outages: list[tuple[float, float]] = []
        self._confirmed_by: Counter[str] = Counter()
        self._counted = 0
        """How many entries of the tally are in it."""

    def hire_as(self, kind: str, address: str = "") -> str:
        """Starts one more worker of this kind; returns its name."""
        if kind == SDK:
            name = self.hire(address)
        else:
            client, mode = kind.split()
            more = ["--implicit"] if mode == "implicit" else []
            if client == "java":
                more += ["--java", str(compiled())]
            name = self.hire(address or self._kafka_address, [*self._kafka_argv, *more])
        self.kinds[name] = kind
        return name

    def kill(self, name: str) -> None:
        if self.kinds[name] != SDK:
            LockWriter(self._locks(name), name).leaving()
        super().kill(name)

    def outage(self, began_s: float) -> None:
        """A coordinator was killed at `began_s`, and is back."""
        self._outages.append((began_s, time.monotonic()))

    def locks(self) -> list[LockEntry]:
        return [self._cut(entry) for entry in super().locks()]

    def _cut(self, entry: LockEntry) -> LockEntry:
        if entry.offset == LEAVING or self.kinds[entry.member] == SDK:
            return entry
        return cut(entry, self._outages)

    def confirmed_by(self) -> Counter[str]:
        """How many acceptances were confirmed, by kind, as of the last `look`."""
        entries = self.tally.entries
        for entry in islice(entries, self._counted, None):
            if entry.verb is Verb.CONFIRMED and entry.outcome is Outcome.ACCEPT:
                self._confirmed_by[self.kinds[entry.member]] += 1
        self._counted = len(entries)
        return self._confirmed_by.copy()


def cut(entry: LockEntry, outages: Iterable[tuple[float, float]]) -> LockEntry:
    """A delivery whose lock ended with its connection, if that broke.

    Args:
        entry: The delivery to a share consumer.
        outages: When its coordinator was killed, and when it was back. What lay in the client when
            the connection broke, its program took in hand afterwards.
    """
    ended = (began_s for began_s, back_s in outages if entry.time_s <= back_s)
    return entry._replace(deadline_s=min([entry.deadline_s, *ended]))
