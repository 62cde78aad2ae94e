"""When alerts begin and end, on the time of windows."""

from __future__ import annotations

import json

import pytest

from sharecoord.analytics.alerts.machine import (
    MEMBERS_NAMED_MAX,
    Alert,
    AlertState,
    WindowFigures,
    look,
)
from sharecoord.analytics.alerts.rules import Rule, RuleKind

STARVED = Rule("s", RuleKind.STARVED, 2)
WINDOW_MS = 10_000


def window(number: int, group: str = "g", **given: object) -> WindowFigures:
    values = {"starved": 0, "starved_members": (), "jain": 1.0, "lag": 0, **given}
    return WindowFigures(group, number * WINDOW_MS, WINDOW_MS, **values)  # type: ignore[arg-type]


class Clock:
    """Windows one after another; the state goes through JSON each time, as in a restart."""

    def __init__(self, *rules: Rule) -> None:
        self.rules, self.text = rules, json.dumps(AlertState().to_json())

    def look(self, *figures: WindowFigures) -> list[Alert]:
        state = AlertState.from_json(json.loads(self.text))
        found = look(state, self.rules, figures)
        self.text = json.dumps(state.to_json())
        return found

    def run(self, *figures: WindowFigures) -> list[tuple[str, str, int, int]]:
        """(rule, state, since, at) of all windows, times in seconds."""
        found = [alert for each in figures for alert in self.look(each)]
        return [(a.rule, a.state, a.since_ms // 1_000, a.at_ms // 1_000) for a in found]


def test_an_alert_begins_once_and_ends_once() -> None:
    clock = Clock(STARVED)
    found = clock.run(*(window(n, starved=count) for n, count in enumerate([1, 2, 3, 2, 1, 0])))
    assert found == [("s", "begins", 10, 20), ("s", "ends", 10, 40)]


def test_it_has_to_last() -> None:
    rule = STARVED.__class__("s", RuleKind.STARVED, 1, "*", 30_000)
    clock = Clock(rule)
    met = [1, 1, 0, 1, 1, 1, 1, 0]
    found = clock.run(*(window(n, starved=count) for n, count in enumerate(met)))
    assert found == [("s", "begins", 30, 60), ("s", "ends", 30, 70)]


def test_a_gap_in_time_ends_it() -> None:
    clock = Clock(STARVED)
    assert clock.run(window(0, starved=2)) == [("s", "begins", 0, 10)]
    # Nothing is known of the time between: that is not the same alert.
    found = clock.run(window(5, starved=2))
    assert found == [("s", "ends", 0, 50), ("s", "begins", 50, 60)]


def test_a_group_of_which_nothing_is_known_any_more() -> None:
    clock = Clock(STARVED)
    clock.run(window(0, starved=2))
    (ends,) = clock.look(window(1, "other"))
    assert (ends.group, ends.state, ends.value) == ("g", "ends", None)
    assert clock.look(window(2, "other")) == []


def test_groups_and_rules_by_themselves() -> None:
    clock = Clock(STARVED, Rule("j", RuleKind.JAIN_BELOW, 0.8, "h*"))
    found = clock.look(window(0, "g", starved=5, jain=0.1), window(0, "h", jain=0.7, starved=1))
    assert [(a.rule, a.group, a.value) for a in found] == [("s", "g", 5), ("j", "h", 0.7)]
    assert [a.kind for a in found] == ["starved", "jain_below"]


@pytest.mark.parametrize(("jain", "met"), [(0.79, True), (0.8, False), (None, False)])
def test_jain_below(jain: float | None, *, met: bool) -> None:
    found = Clock(Rule("j", RuleKind.JAIN_BELOW, 0.8)).look(window(0, jain=jain))
    assert bool(found) is met


def test_lag_that_grows() -> None:
    clock = Clock(Rule("l", RuleKind.LAG_GROWING, 5))
    lags = [100, 150, 201, 300, None, 1_000, 1_100]
    found = clock.run(*(window(n, lag=lag) for n, lag in enumerate(lags)))
    # 5.0/s is not more than the limit; after a window without a sample growth is not known.
    assert found == [("l", "begins", 20, 30), ("l", "ends", 20, 40), ("l", "begins", 60, 70)]
    clock = Clock(Rule("l", RuleKind.LAG_GROWING, 0))
    (begins, *_) = [a for n, lag in enumerate([10, 30]) for a in clock.look(window(n, lag=lag))]
    assert begins.value == 2.0


def test_lag_is_not_compared_over_a_gap() -> None:
    clock = Clock(Rule("l", RuleKind.LAG_GROWING, 0))
    assert clock.run(window(0, lag=0), window(2, lag=500), window(3, lag=500)) == []


def test_members_are_named_up_to_a_limit() -> None:
    names = tuple(f"m{n:02}" for n in range(50))
    (begins,) = Clock(STARVED).look(window(0, starved=50, starved_members=names))
    assert begins.members == names[:MEMBERS_NAMED_MAX]
    assert begins.id == "s/g/0"


def test_a_window_that_was_looked_at_before() -> None:
    clock = Clock(STARVED)
    assert len(clock.look(window(3, starved=2))) == 1
    assert clock.look(window(3, starved=0)) == []
    assert clock.look(window(2, starved=0)) == []


def test_rules_that_are_gone_or_no_longer_concern_a_group() -> None:
    clock = Clock(STARVED, Rule("t", RuleKind.STARVED, 2))
    assert len(clock.look(window(0, starved=2))) == 2
    clock.rules = (Rule("s", RuleKind.STARVED, 2, "other"),)
    found = clock.look(window(1, starved=2))
    assert [(a.rule, a.state) for a in found] == [("t", "ends"), ("s", "ends")]
    assert clock.look(window(2, starved=2)) == []
