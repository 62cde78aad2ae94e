"""The rules of `--alerts FILE`; see docs/alerts.md."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import yaml

from sharecoord.config.setting import nearest
from sharecoord.config.sources import yaml_root
from sharecoord.config.values import parse_duration_ms
from sharecoord.errors import InvalidConfigError

FILE_BYTES_MAX: Final = 1 << 20
"""Limit of the file: thousands of rules. A longer one is another file, named by mistake."""
_NULL: Final = "tag:yaml.org,2002:null"

T = TypeVar("T")


class RuleKind(StrEnum):
    """The condition of a rule on each window of a group."""

    STARVED = "starved"
    """At least `limit` members starve."""
    JAIN_BELOW = "jain_below"
    """Jain's index is below `limit`."""
    LAG_GROWING = "lag_growing"
    """The lag grew by more than `limit` records/s since the window before."""


class TargetKind(StrEnum):
    """Kinds of targets of alerts."""

    LOG = "log"
    WEBHOOK = "webhook"
    KAFKA = "kafka"


class Target(NamedTuple):
    """A target and its URL or topic; a log has neither."""

    kind: TargetKind
    address: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        name: Unique in the file; the state of the rule is stored under it.
        kind: The condition.
        limit: The number in the condition; see `RuleKind`.
        group: Share groups, as a pattern with `*`, `?` and `[…]`.
        for_ms: How long the rule has to be met, in windows without a gap, before the alert begins.
        to: Targets of the alerts.
    """

    name: str
    kind: RuleKind
    limit: float
    group: str = "*"
    for_ms: int = 0
    to: tuple[Target, ...] = (Target(TargetKind.LOG),)

    def concerns(self, group_id: str) -> bool:
        """Whether the rule is about this group."""
        return fnmatch.fnmatchcase(group_id, self.group)


class _Limit(NamedTuple):
    default: float | None
    least: float
    most: float
    expected: str


_LIMITS: Final = {
    RuleKind.STARVED: _Limit(1, 1, float("inf"), "a number of members, at least 1"),
    RuleKind.JAIN_BELOW: _Limit(None, 0, 1, "a number above 0, at most 1"),
    RuleKind.LAG_GROWING: _Limit(0, 0, float("inf"), "a number of records/s, at least 0"),
}
_FIELDS: Final = ("name", "kind", "group", "limit", "for", "to")


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Reads the rules of a file.

    Raises:
        InvalidConfigError: Unreadable, not YAML, or a field that is unknown, missing, set twice or
            malformed; names file, line, field and fix.
    """
    if path.is_file() and path.stat().st_size > FILE_BYTES_MAX:
        raise InvalidConfigError(
            f"{path}: it has more than {FILE_BYTES_MAX >> 20} MiB: is it the file of rules?"
        )
    root = yaml_root(path, f'--alerts "{path}" can not be read')
    return _Reader(path).rules(root)


class _Reader:
    """Nodes of one file as rules."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rules(self, root: yaml.Node | None) -> tuple[Rule, ...]:
        fields = {} if root is None else self._fields(root, ("rules",), "the file")
        if not isinstance(fields.get("rules"), yaml.SequenceNode) or not fields["rules"].value:
            raise self._error(fields.get("rules", root), "rules", "it must be a list of rules")
        rules: dict[str, Rule] = {}
        for node in fields["rules"].value:
            rule = self._rule(node)
            if rule.name in rules:
                raise self._error(node, "name", f'there are two rules "{rule.name}"')
            rules[rule.name] = rule
        return tuple(rules.values())

    def _rule(self, node: yaml.Node) -> Rule:
        fields = self._fields(node, _FIELDS, "a rule")
        for name in ("name", "kind"):
            if name not in fields:
                raise self._error(node, name, "it is missing")
        kind = self._kind(fields["kind"])
        group = self._text(fields["group"], "group") if "group" in fields else "*"
        for_ms = self._read(fields["for"], "for", parse_duration_ms) if "for" in fields else 0
        to = self._targets(fields["to"]) if "to" in fields else (Target(TargetKind.LOG),)
        limit = self._limit(node, fields.get("limit"), kind)
        return Rule(self._text(fields["name"], "name"), kind, limit, group, for_ms, to)

    def _limit(self, rule: yaml.Node, node: yaml.Node | None, kind: RuleKind) -> float:
        known = _LIMITS[kind]
        if node is None:
            if known.default is None:
                raise self._error(rule, "limit", f"{kind} needs one: {known.expected}")
            return known.default

        def read(text: str) -> float:
            try:
                limit = float(text)
            except ValueError:
                limit = float("nan")
            fits = known.least <= limit <= known.most and limit != float("inf")
            if not fits or (kind is RuleKind.JAIN_BELOW and limit == 0):
                raise ValueError(known.expected)
            return limit

        return self._read(node, "limit", read)

    def _targets(self, node: yaml.Node) -> tuple[Target, ...]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not nodes:
            raise self._error(node, "to", "it names no target")
        return tuple(self._read(each, "to", _target) for each in nodes)

    # -- nodes -------------------------------------------------------------------------------------

    def _fields(self, node: yaml.Node, known: tuple[str, ...], what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, "", f"{what} must have fields: {', '.join(known)}")
        fields: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                near = nearest(name, known)
                fix = f'did you mean "{near}"?' if near else f"there are {', '.join(known)}"
                raise self._error(key, name, f"{what} has no such field; {fix}")
            if name in fields:
                raise self._error(key, name, "it is set twice; keep one")
            fields[name] = value
        return fields

    def _text(self, node: yaml.Node, name: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL or not node.value.strip():
            raise self._error(node, name, "it must be a text")
        return str(node.value).strip()

    def _kind(self, node: yaml.Node) -> RuleKind:
        text = self._text(node, "kind")
        try:
            return RuleKind(text)
        except ValueError:
            problem = f'"{text}" must be one of {", ".join(RuleKind)}'
            raise self._error(node, "kind", problem) from None

    def _read(self, node: yaml.Node, name: str, reader: Callable[[str], T]) -> T:
        text = self._text(node, name)
        try:
            return reader(text)
        except ValueError as error:
            raise self._error(node, name, f'"{text}" must be {error}') from None

    def _error(self, node: yaml.Node | None, name: str, problem: str) -> InvalidConfigError:
        line = 1 if node is None else node.start_mark.line + 1
        shown = f"{name}: " if name else ""
        return InvalidConfigError(
            f"{self._path}:{line}: {shown}{problem}", metadata={"key": name} if name else None
        )


def _target(text: str) -> Target:
    """Reads `log`, `webhook URL` or `kafka TOPIC`."""
    word, _, address = text.partition(" ")
    address = address.strip()
    if word == TargetKind.LOG and not address:
        return Target(TargetKind.LOG)
    if word == TargetKind.KAFKA and address and " " not in address:
        return Target(TargetKind.KAFKA, address)
    if word == TargetKind.WEBHOOK and _is_url(address):
        return Target(TargetKind.WEBHOOK, address)
    raise ValueError("log, webhook http(s)://HOST/PATH, or kafka TOPIC")


def _is_url(address: str) -> bool:
    try:
        url = urlsplit(address)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
