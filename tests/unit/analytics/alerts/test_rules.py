"""The file of `--alerts`, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.analytics.alerts import rules
from sharecoord.analytics.alerts.rules import Rule, RuleKind, Target, TargetKind, read_rules
from sharecoord.errors import InvalidConfigError

WHOLE = """
rules:
  - name: somebody starves
    kind: starved
  - name: unfair orders
    kind: jain_below
    group: "orders-*"
    limit: 0.8
    for: 30s
    to: webhook https://h:8443/alerts?token=x
  - name: behind
    kind: lag_growing
    limit: 100
    to: [log, kafka alerts]
"""


def read(folder: Path, text: str) -> tuple[Rule, ...]:
    path = folder / "alerts.yaml"
    path.write_text(text, encoding="utf-8")
    return read_rules(path)


def test_all_fields_and_their_defaults(tmp_path: Path) -> None:
    log = Target(TargetKind.LOG)
    assert read(tmp_path, WHOLE) == (
        Rule("somebody starves", RuleKind.STARVED, 1, "*", 0, (log,)),
        Rule(
            *("unfair orders", RuleKind.JAIN_BELOW, 0.8, "orders-*", 30_000),
            (Target(TargetKind.WEBHOOK, "https://h:8443/alerts?token=x"),),
        ),
        Rule(
            *("behind", RuleKind.LAG_GROWING, 100, "*", 0),
            (log, Target(TargetKind.KAFKA, "alerts")),
        ),
    )


def test_groups_by_pattern() -> None:
    rule = Rule("r", RuleKind.STARVED, 1, "orders-[ab]*")
    found = [rule.concerns(group) for group in ("orders-a", "orders-b1", "orders-c", "Orders-a")]
    assert found == [True, True, False, False]


RULE = "rules:\n- {name: n, kind: starved}\n- name: m\n  "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: rules: it must be a list of rules"),
        ("rules: []", ":1: rules: it must be a list of rules"),
        ("rules: {a: 1}", ":1: rules: it must be a list of rules"),
        ("- a", ":1: the file must have fields: rules"),
        ("\nrule: []", ':2: rule: the file has no such field; did you mean "rules"?'),
        ("rules: [a]", ":1: a rule must have fields: name, kind, group, limit, for, to"),
        ("rules:\n- kind: starved", ":2: name: it is missing"),
        ("rules:\n- name: n", ":2: kind: it is missing"),
        (RULE + "knd: starved", ':4: knd: a rule has no such field; did you mean "kind"?'),
        (RULE + "xyz: 1", ":4: xyz: a rule has no such field; there are name, kind"),
        (RULE + "kind: starved\n  kind: starved", ":5: kind: it is set twice; keep one"),
        (RULE + "kind: hungry", ':4: kind: "hungry" must be one of starved, jain_below, lag_grow'),
        (RULE + "kind: [starved]", ":4: kind: it must be a text"),
        (RULE + "kind: starved\n  group:", ":5: group: it must be a text"),
        (RULE + "kind: jain_below", ":3: limit: jain_below needs one: a number above 0"),
        (RULE + "kind: jain_below\n  limit: 0", ':5: limit: "0" must be a number above 0'),
        (RULE + "kind: jain_below\n  limit: 1.1", ':5: limit: "1.1" must be'),
        (RULE + "kind: starved\n  limit: few", ':5: limit: "few" must be a number of members'),
        (RULE + "kind: starved\n  limit: .inf", ':5: limit: ".inf" must be'),
        (RULE + "kind: starved\n  limit: inf", ':5: limit: "inf" must be'),
        (RULE + "kind: lag_growing\n  limit: -1", ':5: limit: "-1" must be a number of records/s'),
        (RULE + "kind: starved\n  for: soon", ':5: for: "soon" must be a duration such as'),
        (RULE + "kind: starved\n  to: mail", ':5: to: "mail" must be log, webhook http(s)://'),
        (RULE + "kind: starved\n  to: webhook ftp://h", ':5: to: "webhook ftp://h" must be'),
        (RULE + "kind: starved\n  to: webhook", ':5: to: "webhook" must be'),
        (RULE + "kind: starved\n  to: kafka", ':5: to: "kafka" must be'),
        (RULE + "kind: starved\n  to: kafka a b", ':5: to: "kafka a b" must be'),
        (RULE + "kind: starved\n  to: []", ":5: to: it names no target"),
        (RULE + "kind: starved\n- {name: n, kind: starved}", ':5: name: there are two rules "n"'),
        ("rules: [", ":1: not valid YAML: "),
        ("rules: &a [*a]", ":1: "),
        ("!!python/object:os.system {}", ":1: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        read(tmp_path, text)
    assert f"{tmp_path}/alerts.yaml{says}" in caught.value.message


def test_files_that_can_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfigError, match="No such file"):
        read_rules(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"rules: \xe4")
    with pytest.raises(InvalidConfigError, match="it is not UTF-8"):
        read_rules(tmp_path / "latin")
    monkeypatch.setattr(rules, "FILE_BYTES_MAX", 10)
    with pytest.raises(InvalidConfigError, match="is it the file of rules"):
        read(tmp_path, WHOLE)
