"""Writes what consumers did as rows of the event log, so that any of them can be analysed.

`sharecoord analyze fairness --events RESULT/events` shows Kafka's own share group beside this one.
A consumer sees what it is given and how long its handler takes, no more: offsets, delivery counts
and waiting times are null.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sharecoord.bench.engine.cell import Cell
from sharecoord.bench.engine.samples import NO_LATENCY
from sharecoord.bench.engine.trial import Outcome
from sharecoord.bench.run.folder import load_pyarrow
from sharecoord.eventlog.schema import COLUMNS, SCHEMA_VERSION, EventKind, RangeEvent

EVENTS_NAME: Final = "events"
"""Folder of a result."""

COORDINATOR_ID: Final = "bench"
SLOT_NS: Final = 1_000_000_000
"""Samples of members are of one second each, as a coordinator's."""


class EventFolder:
    """Writes the trials of a run as events, one file per trial.

    What was handled outside of a trial's window, whose length is `duration_s`, is left out.
    """

    def __init__(self, directory: Path, duration_s: float) -> None:
        self._arrow, self._parquet = load_pyarrow()
        self._root = directory / EVENTS_NAME
        self._duration_ns = int(duration_s * 1e9)
        arrow = self._arrow
        self._schema = arrow.schema([(each.name, each.type.in_arrow(arrow)) for each in COLUMNS])

    def add(self, outcome: Outcome, cell: Cell, group_id: str) -> None:
        """Writes one trial as the life of a group."""
        wall_us = (time.time_ns() - time.monotonic_ns()) // 1_000
        slots = _slots(outcome, self._duration_ns)
        seconds = self._duration_ns // SLOT_NS
        rows = [*_handled(slots, wall_us), *_wanted(slots, outcome, cell, wall_us, seconds)]
        if not rows:
            return
        common = {
            "schema_version": SCHEMA_VERSION,
            "coordinator_id": COORDINATOR_ID,
            "group_id": group_id,
        }
        rows.sort(key=itemgetter("time"))
        table = self._arrow.Table.from_pylist([common | row for row in rows], schema=self._schema)
        date = datetime.fromtimestamp(rows[0]["time"] / 1e6, tz=UTC).date().isoformat()
        place = self._root / f"date={date}" / f"group={quote(group_id, safe=' ,.-_')}"
        place.mkdir(parents=True, exist_ok=True)
        name = f"events-{COORDINATOR_ID}-{rows[0]['time']}.parquet"
        self._parquet.write_table(table, place / name, compression="zstd")


@dataclass(slots=True)
class _Slot:
    """Sums of the samples of one consumer in one second; `latency_ns` is the longest."""

    records: int = 0
    samples: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    busy_ns: int = 0
    latency_ns: int = NO_LATENCY

    def add(self, records: int, began_ns: int, busy_ns: int, latency_ns: int) -> None:
        """Adds a sample; they come in order of time."""
        self.began_ns = self.began_ns or began_ns
        self.ended_ns = max(self.ended_ns, began_ns + busy_ns)
        self.records += records
        self.samples += 1
        self.busy_ns += busy_ns
        self.latency_ns = max(self.latency_ns, latency_ns)


def _slots(outcome: Outcome, duration_ns: int) -> dict[tuple[int, int], _Slot]:
    """Sums the samples by consumer and second of the window: millions become few rows."""
    found: dict[tuple[int, int], _Slot] = {}
    for consumer, records, began_ns, busy_ns, latency_ns in zip(
        *outcome.samples.columns(), strict=True
    ):
        since_ns = began_ns - outcome.window.begin_ns
        if 0 <= since_ns < duration_ns:
            slot = found.setdefault((consumer, since_ns // SLOT_NS), _Slot())
            slot.add(records, began_ns, busy_ns, latency_ns)
    return found


def _handled(slots: Mapping[tuple[int, int], _Slot], wall_us: int) -> Iterator[dict[str, Any]]:
    """Two rows for each second of a consumer: what it was handed, and that it was done with it."""
    for (consumer, _), slot in slots.items():
        common = {
            "kind": EventKind.RANGE.value,
            "topic": "bench",
            "partition": 0,
            "records": slot.records,
            **_named(consumer),
        }
        age_ms = None if slot.latency_ns == NO_LATENCY else max(0, slot.latency_ns // 1_000_000)
        yield {
            **common,
            "time": wall_us + slot.began_ns // 1_000,
            "event": RangeEvent.ACQUIRED.value,
            "state": "acquired",
            "age_ms": age_ms,
        }
        yield {
            **common,
            "time": wall_us + slot.ended_ns // 1_000,
            "event": RangeEvent.ACCEPTED.value,
            "state": "acknowledged",
            "held_ms": slot.busy_ns // slot.samples // 1_000_000,
            "work_us": slot.busy_ns // 1_000,
        }


def _wanted(
    slots: Mapping[tuple[int, int], _Slot], outcome: Outcome, cell: Cell, wall_us: int, seconds: int
) -> Iterator[dict[str, Any]]:
    """How much each consumer got in each second, and how much it could have worked off."""
    capacity = cell.capacity_per_s
    if capacity is None:
        demand = max((slot.records for slot in slots.values()), default=0)
    else:
        demand = max(1, round(capacity / cell.consumers))
    for second in range(seconds):
        for consumer in range(cell.consumers):
            slot = slots.get((consumer, second))
            got = slot.records if slot else 0
            yield {
                "kind": EventKind.MEMBER.value,
                "time": wall_us + (outcome.window.begin_ns + (second + 1) * SLOT_NS) // 1_000,
                "interval_ms": SLOT_NS // 1_000_000,
                "demand": max(demand, got),
                "got": got,
                **_named(consumer),
            }


def _named(consumer: int) -> dict[str, str]:
    return {"member_id": f"consumer-{consumer}", "client_id": f"consumer-{consumer}"}
