"""The content of the page; no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Row = Mapping[str, Any]

FULL: Final = 0.9
"""From this use on the window of a share-partition is called full: the rest is on its way."""
HEAT_ROWS: Final = 60
"""Most rows of the heat map; more members share a row with their neighbours in rank."""
TIMES: Final = 60
"""Most columns of the heat map, and most points of every line over time."""
POINTS: Final = 100
"""Most points of a curve over members."""
MEMBERS_LISTED: Final = 50
"""Most members in the table of a group: first those that starved the longest."""


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A group: its rows of the jobs' tables, and of functions of `transform` with these names."""

    group_id: str
    fairness: Row | None = None
    """Its row of `fairness_groups`."""
    places: Sequence[Row] = ()
    """Its rows of `lag_partitions`, share-partitions that are behind first."""
    poison: Row | None = None
    """Its row of `poison_groups`."""
    locks: Row | None = None
    """Its row of `locks_groups`."""
    members: Sequence[Row] = ()
    """Its rows of `transform.listed_members`."""
    heat_labels: Sequence[Row] = ()
    heat: Sequence[Row] = ()
    lorenz: Sequence[Row] = ()
    dwells: Sequence[Row] = ()
    use: Sequence[Row] = ()
    """Its rows of `transform.window_use`."""
    waiting: Sequence[Row] = ()
    deliveries: Sequence[Row] = ()
    """Its rows of `poison_deliveries`, in order of the count."""

    @property
    def starved(self) -> int:
        """Number of members that starved."""
        return int(self.fairness["starved"]) if self.fairness else 0

    @property
    def behind(self) -> list[Row]:
        """Share-partitions that are behind at the end of the range."""
        return [place for place in self.places if place["behind"]]

    @property
    def trouble(self) -> tuple[float, ...]:
        """How bad the group is, to sort groups by: starved, behind, failing, unfair."""
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
    """The whole page."""

    events: str
    """Name of the folder or topic."""
    window_ms: int
    """Length of the time windows behind heat maps and lines."""
    period: tuple[str, str] | None
    """Times of the first and the last event, as text in UTC; None: there are no events."""
    made_at: str
    """Time at which the page was made, as text in UTC."""
    groups: Sequence[GroupPart]
    """Groups that are drawn, those with trouble first."""
    left_out: Sequence[Row] = ()
    """Rows of `fairness_groups` of further groups, which are listed."""
    warnings: Sequence[str] = field(default_factory=tuple)
    """Sentences on how far the figures can be trusted."""
