"""Records that come in the background while something else is done to the processes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from typing import Self

from sharecoord.demo.ledger import Verb
from sharecoord.devenv.topics import Topics
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.records import partition_of


class Load:
    """Produces for a crew inside a `with` block, in steps of equal length.

    Attributes:
        produced_s: When each record was confirmed by Kafka, on the monotonic clock.
    """

    def __init__(
        self,
        crew: Crew,
        topics: Topics,
        *,
        each_s: float,
        chunk: int,
        most_waiting: int = sys.maxsize,
    ) -> None:
        """Nothing is produced yet.

        Args:
            crew: Who is to work on the records.
            topics: Fills the crew's topic.
            each_s: How long a step is.
            chunk: Records of a step.
            most_waiting: No step is made while so many records wait for their confirmation.
        """
        self.produced_s: dict[int, float] = {}
        self._crew = crew
        self._topics = topics
        self._each_s = each_s
        self._chunk = chunk
        self._most_waiting = most_waiting
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing more comes."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def longest_wait_s(
        self, since_s: float = 0.0, partitions: Collection[int] | None = None
    ) -> float:
        """From Kafka's confirmation to a worker's hands, the slowest record of all.

        A record that nobody has got yet waits until now.

        Args:
            since_s: Only records that were confirmed from then on.
            partitions: Only records of these; None = of all.
        """
        got_s: dict[int, float] = {}
        for entry in sorted(self._crew.look().entries):
            if entry.verb is Verb.GOT:
                got_s.setdefault(entry.offset, entry.time_s)
        now_s = time.monotonic()
        return max(
            (
                got_s.get(place, now_s) - at_s
                for place, at_s in self.produced_s.copy().items()
                if at_s >= since_s and (partitions is None or partition_of(place) in partitions)
            ),
            default=0.0,
        )

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._each_s):
                if len(self._crew.produced) - len(self._crew.confirmed) >= self._most_waiting:
                    continue
                before = set(self._crew.produced)
                self._crew.produce(self._topics, self._chunk)
                now_s = time.monotonic()
                added = self._crew.produced - before
                self.produced_s |= dict.fromkeys(added, now_s)
        except BaseException as error:  # noqa: BLE001 - handed over to the test's thread
            self._error = error
