"""Begin and end of alerts: pure, on the time of windows.

A rule is *met* in a window of a group. When it has been met in windows without a gap for as long as
`for` says, the alert begins; with the first window in which it is not met, it ends. In a window
without figures of a group no rule is met.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sharecoord.analytics.alerts.rules import Rule, RuleKind

MEMBERS_NAMED_MAX: Final = 20
"""Largest number of starved members that are named in an alert; their number is exact."""


class WindowFigures(NamedTuple):
    """Figures of a group in a closed window."""

    group_id: str
    start_ms: int
    """Milliseconds since the epoch."""
    window_ms: int
    starved: int
    starved_members: tuple[str, ...]
    jain: float | None
    """None without samples of members."""
    lag: int | None
    """Records at the end of the window; None without samples of partitions."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> WindowFigures:
        """The figures in a row of the table `fairness_live`, its time in milliseconds."""
        return cls(
            *(row["group_id"], row["window_start"], row["window_ms"], row["starved"]),
            tuple(row["starved_members"]),
            *(row["jain"], row["lag"]),
        )


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that begins or ends.

    Attributes:
        rule: Name of the rule.
        kind: Kind of the rule; empty when the rule is gone.
        group: The share group.
        state: `begins` or `ends`.
        since_ms: Start of the first window in which the rule was met.
        at_ms: End of the window with which the alert begins; start of the one with which it ends.
        value: The value that the rule compares with its limit; None when there are no figures.
        limit: Limit of the rule.
        members: Starved members, at most `MEMBERS_NAMED_MAX`.
    """

    rule: str
    kind: str
    group: str
    state: str
    since_ms: int
    at_ms: int
    value: float | None
    limit: float
    members: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Identity of the alert: the same when it begins and ends, and when it is sent again."""
        return f"{self.rule}/{self.group}/{self.since_ms}"


@dataclass(slots=True)
class _Met:
    """Since when a rule has been met in a group."""

    since_ms: int
    is_on: bool = False
    """Whether the alert has begun."""


@dataclass(slots=True)
class AlertState:
    """State of all alerts between two windows; it is stored as JSON in the checkpoint folder."""

    end_ms: int = 0
    """End of the last window; 0 before the first."""
    lags: dict[str, int] = field(default_factory=dict)
    """Lag of each group at `end_ms`."""
    met: dict[tuple[str, str], _Met] = field(default_factory=dict)
    """Rules that are met, by rule and group."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        rows = [[*key, *asdict(each).values()] for key, each in sorted(self.met.items())]
        return {"end_ms": self.end_ms, "lags": self.lags, "met": rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AlertState:
        """Reads the data of `to_json`."""
        met = {(rule, group): _Met(since, is_on) for rule, group, since, is_on in data["met"]}
        return cls(data["end_ms"], dict(data["lags"]), met)


def look(state: AlertState, rules: Sequence[Rule], window: Sequence[WindowFigures]) -> list[Alert]:
    """Takes the figures of one window of all groups; changes the state.

    Windows come in order of their time; `window` has at least one group. An alert whose rule is no
    longer there ends.

    Returns:
        Alerts that begin or end, in order of rules and groups.
    """
    start_ms, end_ms = window[0].start_ms, window[0].start_ms + window[0].window_ms
    if start_ms < state.end_ms:
        return []  # a window that was done before
    figures = {each.group_id: each for each in window}
    alerts: list[Alert] = []
    names = {rule.name for rule in rules}
    for rule_name, group_id in [key for key in state.met if key[0] not in names]:
        met = state.met.pop((rule_name, group_id))
        if met.is_on:
            alerts.append(Alert(rule_name, "", group_id, "ends", met.since_ms, start_ms, None, 0))
    for rule in rules:
        before = {group for name, group in state.met if name == rule.name}
        for group_id in sorted(before | figures.keys()):
            if rule.concerns(group_id) or group_id in before:
                alerts += _step(state, rule, group_id, figures.get(group_id), start_ms, end_ms)
    state.end_ms = end_ms
    state.lags = {group: each.lag for group, each in figures.items() if each.lag is not None}
    return alerts


def _step(
    state: AlertState,
    rule: Rule,
    group_id: str,
    figures: WindowFigures | None,
    start_ms: int,
    end_ms: int,
) -> Iterator[Alert]:
    """Takes the figures of one group for one rule; changes what the state knows of the two."""
    follows = start_ms == state.end_ms
    value = _value(rule, figures, state.lags.get(group_id) if follows else None)
    is_met = rule.concerns(group_id) and _is_met(rule, value)
    key = (rule.name, group_id)
    former = state.met.get(key)
    if former is not None and not (is_met and follows):
        del state.met[key]
        if former.is_on:
            yield _alert(rule, group_id, "ends", former.since_ms, start_ms, value)
    if is_met:
        met = state.met.setdefault(key, _Met(start_ms))
        if not met.is_on and end_ms - met.since_ms >= rule.for_ms:
            met.is_on = True
            starved = figures.starved_members if figures and rule.kind is RuleKind.STARVED else ()
            yield _alert(rule, group_id, "begins", met.since_ms, end_ms, value, starved)


def _value(rule: Rule, figures: WindowFigures | None, lag_before: int | None) -> float | None:
    """The value that a rule compares with its limit; None when it is not known."""
    if figures is None:
        return None
    if rule.kind is RuleKind.STARVED:
        return figures.starved
    if rule.kind is RuleKind.JAIN_BELOW:
        return figures.jain
    if figures.lag is None or lag_before is None:
        return None
    return (figures.lag - lag_before) * 1_000 / figures.window_ms


def _is_met(rule: Rule, value: float | None) -> bool:
    if value is None:
        return False
    if rule.kind is RuleKind.STARVED:
        return value >= rule.limit
    return value < rule.limit if rule.kind is RuleKind.JAIN_BELOW else value > rule.limit


def _alert(
    rule: Rule,
    group_id: str,
    state: str,
    since_ms: int,
    at_ms: int,
    value: float | None,
    members: tuple[str, ...] = (),
) -> Alert:
    named = members[:MEMBERS_NAMED_MAX]
    return Alert(rule.name, rule.kind, group_id, state, since_ms, at_ms, value, rule.limit, named)
