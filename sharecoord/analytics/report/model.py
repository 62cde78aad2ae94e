"""What the page shows; no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Row = Mapping[str, Any]

FULL: Final = 0.9
"""From this use on a window is called full: what is left is on its way."""
HEAT_ROWS: Final = 60
"""More members share a row with those beside them in rank."""
TIMES: Final = 60
"""Columns of the heat map, and points of every line over time."""
POINTS: Final = 100
"""Points of a curve over members."""
MEMBERS_LISTED: Final = 50
"""Members in the table of a group: those that starved the longest, then those with the most."""


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One group.

    Attributes:
        group_id: Its name.
        fairness: Its row of `fairness_groups`, or None.
        places: Its rows of `lag_partitions`, who is behind first.
        poison: Its row of `poison_groups`, or None.
        locks: Its row of `locks_groups`, or None.
        members: Rows of `transform.listed_members`.
        heat_labels: Rows of `transform.heat_labels`, in order.
        heat: Rows of `transform.heat`.
        lorenz: Rows of `transform.lorenz`, in order.
        dwells: Rows of `transform.dwells`, in order.
        use: Rows of `transform.window_use`, in order.
        waiting: Rows of `transform.waiting`, in order.
        deliveries: Rows of `poison_deliveries`, in order of the count.
    """

    group_id: str
    fairness: Row | None = None
    places: Sequence[Row] = ()
    poison: Row | None = None
    locks: Row | None = None
    members: Sequence[Row] = ()
    heat_labels: Sequence[Row] = ()
    heat: Sequence[Row] = ()
    lorenz: Sequence[Row] = ()
    dwells: Sequence[Row] = ()
    use: Sequence[Row] = ()
    waiting: Sequence[Row] = ()
    deliveries: Sequence[Row] = ()

    @property
    def starved(self) -> int:
        """How many members starved."""
        return int(self.fairness["starved"]) if self.fairness else 0

    @property
    def behind(self) -> list[Row]:
        """Share-partitions that are behind at the end of the range."""
        return [place for place in self.places if place["behind"]]

    @property
    def trouble(self) -> tuple[float, ...]:
        """Groups in descending order of this: starved, behind, failing, unfair."""
        fairness, poison = self.fairness or {}, self.poison or {}
        members = fairness.get("members") or 1
        index = fairness.get("jain")
        return (
            self.starved / members,
            float(bool(self.behind)),
            float(poison.get("failed_share") or 0),
            0.0 if index is None else 1 - float(index),
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The whole page.

    Attributes:
        events: What was read.
        window_ms: Of heat maps and lines.
        period: Times of the first and the last event, as text in UTC; None: there is none.
        made_at: When the page was made, as text in UTC.
        groups: In order, those with trouble first; only these are drawn.
        left_out: Rows of `fairness_groups` of further groups, which are listed.
        warnings: What speaks against the figures.
    """

    events: str
    window_ms: int
    period: tuple[str, str] | None
    made_at: str
    groups: Sequence[GroupPart]
    left_out: Sequence[Row] = ()
    warnings: Sequence[str] = field(default_factory=tuple)
