"""A report by hand: what the jobs would have found in a group where some starve."""

from __future__ import annotations

from typing import Any

from sharecoord.analytics.locks.settings import Advice
from sharecoord.analytics.report.model import (
    HEAT_ROWS,
    MEMBERS_LISTED,
    POINTS,
    TIMES,
    GroupPart,
    Report,
)

WINDOW_MS = 10_000
START_MS = 1_767_571_200_000
"""2026-01-05 00:00:00 UTC."""


def fairness_row(group: str, members: int, starved: int, **values: Any) -> dict[str, Any]:
    share = 1 / max(1, members - starved)
    given = {
        "group_id": group,
        "members": members,
        "starved": starved,
        "starved_members": [f"m{n}" for n in range(min(starved, 100))],
        "jain": 1 - starved / members if members else None,
        "worst_jain": 0.5,
        "worst_window": "2026-01-05 00:00:10Z",
        "gini": 0.4,
        "top_share": share,
        "top_decile_share": min(1.0, 10 * share),
        "records": 10_000,
        "dwell_p50_ms": 3.0,
        "dwell_p99_ms": 950.0,
        "over_share": 0,
        "complete": 1.0,
        "changes_seen": 10,
        "changes_expected": 10,
        "lost": 0,
    }
    return {**given, **values}


def member_row(number: int, *, starved: bool) -> dict[str, Any]:
    return {
        "member_id": f"member-{number:05}",
        "client_id": f"worker-{number:05}",
        "records": 0 if starved else 400,
        "share": 0.0 if starved else 0.04,
        "fair_part": 0.0 if starved else 1.0,
        "starved": starved,
        "starved_since": f"2026-01-05 00:00:{10 + number % 50}Z" if starved else None,
        "starvation_ms": 60_000 if starved else 0,
        "dwell_p99_ms": None if starved else 20.0 + number,
        "held_ms": None if starved else 5.0,
        "over_share_ms": 0,
    }


def place_row(partition: int, *, behind: bool, **values: Any) -> dict[str, Any]:
    given = {
        "topic": "payments",
        "partition": partition,
        "lag": 5_000 if behind else 12,
        "waiting": 4_000 if behind else 0,
        "behind_ms": 61_000 if behind else 3,
        "behind": behind,
        "arrival_rate": 100.0,
        "service_rate": 80.0 if behind else 100.0,
        "trend": "grows" if behind else "steady",
        "slope": 20.0 if behind else 0.0,
        "drain_s": None,
        "forecast_error": 40.0 if behind else None,
        "forecast_error_naive": 90.0 if behind else None,
        "lag_share": 0.9 if behind else 0.0,
        "stretches": int(behind),
        "since": "2026-01-05 00:03:00Z" if behind else None,
        "until": None,
        "last_without_lag": "2026-01-05 00:02:50Z" if behind else None,
        "causes": [{"cause": "service_rate", "before": 100.0, "around": 80.0}] if behind else [],
        "complete": 1.0,
    }
    return {**given, **values}


def poison_row(group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "attempts": 11_000,
        "failed": 1_000,
        "failed_share": 1 / 11,
        "poison_keys": 1,
        "worst_keys": ["order-7"],
        "top_reason": "ValueError: # of #",
        "archived": 200,
        "expired": 0,
        "wasted_share": 0.2,
        "wasted_hours": 0.5,
        "complete": 1.0,
    }


def locks_row(group: str, advice: Advice = Advice.LONGER) -> dict[str, Any]:
    return {
        "group_id": group,
        "advice": str(advice),
        "acknowledged": 9_000,
        "expired": 40,
        "near_misses": 80,
        "lock_ms": 30_000,
        "held_p50_ms": 20_000.0,
        "held_p999_ms": 29_000.0,
        "advised_lock_ms": 45_000,
        "at_a_time": 10.0,
        "work_ms": 5.0,
        "poll_records": 5,
        "complete": 1.0,
    }


def whole_part(group: str, members: int, starved: int) -> GroupPart:
    """A group with everything that can be drawn, as bounded as the job leaves it."""
    rows = min(HEAT_ROWS, members)
    served = [row for row in range(rows) if row * members // rows < members - starved]
    heat = [
        {
            "row": row,
            "bin": at,
            "first_window": START_MS // WINDOW_MS + at,
            "records": 400 - 3 * row,
        }
        for row in served
        for at in range(TIMES)
        if (row + at) % 7
    ]
    times = [START_MS + WINDOW_MS * at for at in range(TIMES)]
    listed = [member_row(n, starved=n < starved) for n in range(min(MEMBERS_LISTED, members))]
    points = min(POINTS, members)
    return GroupPart(
        group,
        fairness_row(group, members, starved),
        [place_row(0, behind=True), *(place_row(n, behind=False) for n in range(1, 4))],
        poison_row(group),
        locks_row(group),
        listed,
        [
            {
                "row": row,
                "members": members // rows,
                "name": f"worker-{row:05}",
                "first_ms": None,
                "last_ms": None,
            }
            for row in range(rows)
        ],
        heat,
        [
            {"members_share": (at + 1) / points, "records_share": ((at + 1) / points) ** 2}
            for at in range(points)
        ],
        [
            {
                "members_share": (at + 1) / points,
                "dwell_p50_ms": 1.0 + at / 9,
                "dwell_p99_ms": 20.0 + at**1.5,
            }
            for at in range(points)
        ],
        [
            {"at_ms": at_ms, "use": 0.3 + n / 100, "use_max": 0.4 + n / 100}
            for n, at_ms in enumerate(times)
        ],
        [{"at_ms": at_ms, "waiting": 60 * n} for n, at_ms in enumerate(times)],
        [
            {"delivery_count": 1, "accepted": 9_000, "archived": 0},
            {"delivery_count": 2, "accepted": 700, "archived": 0},
            {"delivery_count": 5, "accepted": 100, "archived": 200},
        ],
    )


def whole_report(members: int = 50, starved: int = 23) -> Report:
    parts = [whole_part("orders", members, starved), GroupPart("idle")]
    left_out = [fairness_row(f"small-{n}", 2, 0) for n in range(30)]
    return report_of(*parts, events="./events", left_out=left_out, warnings=["1 file: <x>"])


def report_of(*parts: GroupPart, events: str = "e", **given: Any) -> Report:
    """A page of these groups."""
    period = ("2026-01-05 00:00:00Z", "2026-01-05 00:10:00Z")
    return Report(events, WINDOW_MS, period, "2026-01-06 08:00:00Z", parts, **given)
