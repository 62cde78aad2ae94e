"""When an alert begins and when it ends: pure, on the time of windows.

A rule is *met* in a window of a group. When it has been met in windows without a gap for as long as
`for` says, the alert begins; with the first window in which it is not met, it ends. A window in
which nothing is known of a group does not meet any rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sharecoord.analytics.alerts.rules import Rule, RuleKind

MEMBERS_NAMED_MAX: Final = 20
"""So many starved members are named in an alert; their number is exact."""


class WindowFigures(NamedTuple):
    """What rules look at: a closed window of a group."""

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


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that begins or ends.

    Attributes:
        rule: Name of the rule.
        kind: What it looks at.
        group: The share group.
        state: `begins` or `ends`.
        since_ms: Start of the first window in which the rule was met.
        at_ms: End of the window with which the alert begins; start of the one with which it ends.
        value: What was found; None when nothing is known of the group any more.
        limit: Of the rule.
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
        """The same for the begin and the end of one alert, and when it is sent again."""
        return f"{self.rule}/{self.group}/{self.since_ms}"


@dataclass(slots=True)
class _Met:
    """A rule that is met in a group, or was in its last window."""

    since_ms: int
    is_on: bool = False


@dataclass(slots=True)
class AlertState:
    """What is remembered between windows; as JSON in the checkpoint folder.

    Attributes:
        end_ms: End of the last window that was looked at; 0 before the first.
        lags: Lag of each group at that time.
        met: By rule and group.
    """

    end_ms: int = 0
    lags: dict[str, int] = field(default_factory=dict)
    met: dict[tuple[str, str], _Met] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        rows = [[*key, *asdict(each).values()] for key, each in sorted(self.met.items())]
        return {"end_ms": self.end_ms, "lags": self.lags, "met": rows}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> AlertState:
        """What `to_json` made."""
        met = {(rule, group): _Met(since, is_on) for rule, group, since, is_on in found["met"]}
        return cls(found["end_ms"], dict(found["lags"]), met)


def look(state: AlertState, rules: Sequence[Rule], window: Sequence[WindowFigures]) -> list[Alert]:
    """Looks at one window of all groups; changes the state.

    Args:
        state: After the window before; windows come in order of their time.
        rules: The rules; what is on by a rule that is no longer there ends.
        window: Its groups, at least one; all of the same time.

    Returns:
        What begins and what ends, in order of rules and groups.
    """
    first = window[0]
    start_ms, window_ms = first.start_ms, first.window_ms
    if start_ms < state.end_ms:
        return []  # looked at before
    follows = start_ms == state.end_ms
    figures = {each.group_id: each for each in window}
    found: list[Alert] = []
    names = {rule.name for rule in rules}
    for rule_name, group_id in [key for key in state.met if key[0] not in names]:
        met = state.met.pop((rule_name, group_id))
        if met.is_on:
            found.append(Alert(rule_name, "", group_id, "ends", met.since_ms, start_ms, None, 0))
    for rule in rules:
        before = {group for name, group in state.met if name == rule.name}
        for group_id in sorted(before | figures.keys()):
            if rule.concerns(group_id) or group_id in before:
                lag = state.lags.get(group_id) if follows else None
                value = _value(rule, figures.get(group_id), lag)
                found += _step(
                    state, rule, group_id, value, figures, (start_ms, window_ms, follows)
                )
    state.end_ms = start_ms + window_ms
    state.lags = {group: each.lag for group, each in figures.items() if each.lag is not None}
    return found


def _value(rule: Rule, figures: WindowFigures | None, lag_before: int | None) -> float | None:
    """What a rule looks at; None when it is not known."""
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


def _step(
    state: AlertState,
    rule: Rule,
    group_id: str,
    value: float | None,
    figures: Mapping[str, WindowFigures],
    window: tuple[int, int, bool],
) -> list[Alert]:
    """One rule and group in one window: (start, length, whether it follows the last one)."""
    start_ms, window_ms, follows = window
    key = (rule.name, group_id)
    found: list[Alert] = []
    met = state.met.get(key)
    is_met = rule.concerns(group_id) and _is_met(rule, value)
    if met is not None and not (is_met and follows):
        del state.met[key]
        if met.is_on:
            found.append(_alert(rule, group_id, "ends", met.since_ms, start_ms, value))
        met = None
    if is_met:
        met = state.met.setdefault(key, _Met(start_ms))
        end_ms = start_ms + window_ms
        if not met.is_on and end_ms - met.since_ms >= rule.for_ms:
            met.is_on = True
            who = figures[group_id].starved_members if rule.kind is RuleKind.STARVED else ()
            begins = _alert(rule, group_id, "begins", met.since_ms, end_ms, value, who)
            found.append(begins)
    return found


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
