r"""Rules: which principal may do what with which resource, and how much of it.

A file of YAML says so. What denies comes before what allows, whatever the order of the lines, and
what no line allows is denied::

    rules:
      - allow: [consume, describe]
        principals: ["User:orders-*", "Group:orders-team"]
        resources: ["group:orders", "topic:orders*"]
      - deny: ["*"]
        principals: ["User:orders-trainee"]
        resources: ["group:*"]
    quotas:
      - principals: ["*"]
        members: 200

A name that ends with `*` is a beginning, `*` alone is any name, `\*` is a star. `*` as a principal
is everybody who has proven to be somebody: `User:anonymous` has to be named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import yaml

from sharecoord.errors import InvalidConfigError
from sharecoord.security.actions import CLUSTER, KINDS_OF, Action, Kind, Resource
from sharecoord.security.nodes import Nodes, line_of, unknown, words
from sharecoord.security.principals import ANONYMOUS, USER, Principal

ANY: Final = "*"
GROUP: Final = "Group:"

DECISIONS_KEPT: Final = 65_536
"""Decisions of one set of rules that are kept, the latest used: some MB. A principal asks for the
same groups and topics again and again."""


class Decision(NamedTuple):
    """Whether something is allowed, and which line of the file says so."""

    is_allowed: bool
    line: int
    """From 1; 0 = no line says anything, so it is denied."""

    @property
    def why(self) -> str:
        """The decision in words."""
        if not self.line:
            return "there are no rules" if self.is_allowed else "no line of the rules allows it"
        return f"line {self.line} of the rules {'allows' if self.is_allowed else 'denies'} it"


@dataclass(frozen=True, slots=True)
class Quota:
    """Most of what one principal may use at one coordinator; None = no limit."""

    members: int | None = None
    """Members of all groups together."""
    streams: int | None = None
    """Connections for records that are open at a time."""
    groups: int | None = None
    """Groups that came into being by the principal and are still there."""
    records_in_flight: int | None = None
    """Records under locks of its members together."""
    admin_requests_per_s: float | None = None
    """Administrative calls, on average of ten seconds."""


NO_QUOTA: Final = Quota()

QUOTA_NAMES: Final = tuple(each.name for each in fields(Quota))


class Pattern(NamedTuple):
    """A name, or the beginning of names."""

    text: str
    is_prefix: bool

    def matches(self, name: str) -> bool:
        """Whether a name is meant."""
        return name.startswith(self.text) if self.is_prefix else name == self.text


def pattern_of(text: str) -> Pattern:
    r"""Reads `name`, `beginning*`, `*`; a star that belongs to the name is written `\*`.

    Raises:
        ValueError: A star stands before the end; the text is the end of "it must be …".
    """
    is_prefix = text.endswith("*") and not text.endswith("\\*")
    name = text[:-1] if is_prefix else text
    if "*" in name.replace("\\*", ""):
        raise ValueError("a name, or a beginning with one `*` at its end (`\\*` is a star)")
    return Pattern(name.replace("\\*", "*"), is_prefix)


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of `rules`."""

    line: int
    allows: bool
    actions: frozenset[Action]
    principals: tuple[Pattern, ...]
    """Of `User:…` and `Group:…`."""
    is_for_all: bool
    """Whether everybody but `User:anonymous` is meant."""
    resources: tuple[tuple[Kind | None, Pattern], ...]
    """None = of any kind."""

    def is_about(self, action: Action, resource: Resource) -> bool:
        """Whether the rule speaks of an action on a resource."""
        return action in self.actions and any(
            (kind is None or kind is resource.kind) and pattern.matches(resource.name)
            for kind, pattern in self.resources
        )


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """One entry of `quotas`; the first one that speaks of a principal holds."""

    line: int
    principals: tuple[Pattern, ...]
    is_for_all: bool
    quota: Quota


E = TypeVar("E", Rule, QuotaRule)


class _Index(Generic[E]):
    """Finds what a file says of a principal without a look at all that it says of others.

    A thousand rules take milliseconds to look through, and after a change of the file each
    principal that is connected is looked up anew, on the loop.
    """

    def __init__(self, entries: Sequence[E]) -> None:
        self._entries: Sequence[E] = entries
        self._for_all = [at for at, each in enumerate(entries) if each.is_for_all]
        self._at: defaultdict[Pattern, list[int]] = defaultdict(list)
        for at, each in enumerate(entries):
            for pattern in each.principals:
                self._at[pattern].append(at)
        self._lengths = sorted({len(each.text) for each in self._at if each.is_prefix})

    def of(self, principal: Principal, *, for_all: bool) -> list[E]:
        """The entries that speak of a principal, by its name or one of its groups, in order.

        A pattern of beginnings does not mean `User:anonymous`, which has to be named.

        Args:
            principal: Whom they are to speak of.
            for_all: Whether those for everybody are among them.
        """
        found = set(self._for_all if for_all else ())
        for name in (principal.name, *(GROUP + each for each in principal.groups)):
            found.update(self._at.get(Pattern(name, is_prefix=False), ()))
            if name != ANONYMOUS.name:
                for length in self._lengths:
                    found.update(self._at.get(Pattern(name[:length], is_prefix=True), ()))
        return [self._entries[at] for at in sorted(found)]


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """All rules of a file."""

    rules: tuple[Rule, ...] = ()
    quotas: tuple[QuotaRule, ...] = ()
    decide: Callable[[Principal, Action, Resource], Decision] = field(init=False, repr=False)
    """Whether a principal may do something, and by which line."""
    quota_of: Callable[[Principal], Quota] = field(init=False, repr=False)
    """The quota of a principal."""

    def __post_init__(self) -> None:
        rules, quotas = _Index(self.rules), _Index(self.quotas)

        def of_principal(who: Principal) -> list[Rule]:
            """The rules about a principal: those that deny first."""
            mine = rules.of(who, for_all=who != ANONYMOUS)
            return sorted(mine, key=lambda rule: rule.allows)

        def quota_of(who: Principal) -> Quota:
            """The first quota of a principal; that of everybody is the anonymous one's, too."""
            return next((each.quota for each in quotas.of(who, for_all=True)), NO_QUOTA)

        keep = lru_cache(DECISIONS_KEPT)
        kept = keep(of_principal)
        object.__setattr__(
            self, "decide", keep(lambda who, action, what: _decide(kept(who), action, what))
        )
        object.__setattr__(self, "quota_of", keep(quota_of))


def _decide(rules: Iterable[Rule], action: Action, resource: Resource) -> Decision:
    for rule in rules:
        if rule.is_about(action, resource):
            return Decision(rule.allows, rule.line)
    return Decision(is_allowed=False, line=0)


# -- the file -------------------------------------------------------------------------------------


def read_rules(content: bytes) -> Rules:
    """Reads a file of rules.

    Raises:
        InvalidConfigError: It is no such file; names line, word and fix.
    """
    document = _FILE.document(content)
    parts = {key: node for key, _, node in _FILE.entries(document, ("rules", "quotas"), "the file")}
    if "rules" not in parts:
        raise InvalidConfigError(
            f"{SETTING} has no `rules:`, so nobody would be allowed anything; "
            "`rules: []` says that on purpose"
        )
    return Rules(
        tuple(_rule(node) for node in _FILE.items(parts["rules"], "`rules:`")),
        tuple(_quota(node) for node in _FILE.items(parts.get("quotas"), "`quotas:`")),
    )


def _rule(node: yaml.Node) -> Rule:
    entry = {key: value for key, _, value in _FILE.entries(node, _RULE_KEYS, "a rule")}
    line = line_of(node)
    verbs = [verb for verb in ("allow", "deny") if verb in entry]
    if len(verbs) != 1:
        raise _FILE.bad(line, "a rule has either `allow:` or `deny:`, with a list of actions")
    for key in ("principals", "resources"):
        if key not in entry:
            raise _FILE.bad(line, f"a rule needs `{key}:`, a list")
    actions = _actions(entry[verbs[0]])
    principals, is_for_all = _principals(entry["principals"])
    resources = tuple(
        _resource(text, at) for text, at in _FILE.texts(entry["resources"], "resources")
    )
    _check_meaning(actions, resources, line, is_all=len(actions) == len(Action))
    return Rule(line, verbs[0] == "allow", actions, principals, is_for_all, resources)


_RULE_KEYS: Final = ("allow", "deny", "principals", "resources")
_ACTIONS: Final = frozenset(each.value for each in Action)
_KINDS: Final = frozenset(each.value for each in Kind)
SETTING: Final = "security.rules.file"

_FILE: Final = Nodes(SETTING)


def _check_meaning(
    actions: Iterable[Action],
    resources: Sequence[tuple[Kind | None, Pattern]],
    line: int,
    *,
    is_all: bool,
) -> None:
    """Refuses an action that means nothing for any of the resources: a rule that says nothing."""
    kinds = {kind for kind, _ in resources}
    if is_all or None in kinds:
        return
    for action in actions:
        if not KINDS_OF[action] & kinds:
            raise _FILE.bad(
                line,
                f"{action} is about {words(KINDS_OF[action])}, and the rule names none",
            )


def _quota(node: yaml.Node) -> QuotaRule:
    entry = list(_FILE.entries(node, ("principals", *QUOTA_NAMES), "a quota"))
    line = line_of(node)
    limits: dict[str, Any] = {}
    principals: tuple[Pattern, ...] = ()
    is_for_all = False
    for key, at, value in entry:
        if key == "principals":
            principals, is_for_all = _principals(value)
        else:
            limits[key] = _limit(key, at, value)
    if not principals and not is_for_all:
        raise _FILE.bad(line, "a quota needs `principals:`, a list")
    if not limits:
        raise _FILE.bad(line, f"a quota needs one of {', '.join(QUOTA_NAMES)}")
    return QuotaRule(line, principals, is_for_all, Quota(**limits))


def _limit(key: str, line: int, node: yaml.Node) -> float | int:
    kind = float if key == "admin_requests_per_s" else int
    try:
        number = kind(node.value)
    except (TypeError, ValueError):
        number = kind(-1)
    if not 0 <= number <= 1_000_000_000:
        raise _FILE.bad(line, f"{key} must be a number from 0 to 1000000000")
    return number


def _actions(node: yaml.Node) -> frozenset[Action]:
    found: set[Action] = set()
    for word, line in _FILE.texts(node, "actions"):
        if word == ANY:
            found.update(Action)
        elif word in _ACTIONS:
            found.add(Action(word))
        else:
            raise _FILE.unknown(line, "action", word, Action)
    return frozenset(found)


def _principals(node: yaml.Node) -> tuple[tuple[Pattern, ...], bool]:
    """Patterns of principals, and whether everybody is meant."""
    patterns: list[Pattern] = []
    is_for_all = False
    for text, line in _FILE.texts(node, "principals"):
        if text == ANY:
            is_for_all = True
        elif not text.startswith((USER, GROUP)):
            raise _FILE.bad(
                line, f"principal {text!r} must begin with `User:` or `Group:`, or be `*`"
            )
        else:
            patterns.append(_pattern(text, line))
    return tuple(patterns), is_for_all


def _resource(text: str, line: int) -> tuple[Kind | None, Pattern]:
    word, colon, name = text.partition(":")
    if text == ANY:
        return None, Pattern("", is_prefix=True)
    if word not in _KINDS:
        raise _FILE.unknown(line, "kind of resource", word, Kind)
    if word == Kind.CLUSTER and not colon:
        return Kind.CLUSTER, Pattern(CLUSTER.name, is_prefix=False)
    if not name:
        raise _FILE.bad(
            line, f"resource {text!r} must be `{word}:NAME`, `{word}:BEGINNING*` or `*`"
        )
    return Kind(word), _pattern(name, line)


def _pattern(text: str, line: int) -> Pattern:
    try:
        return pattern_of(text)
    except ValueError as error:
        raise _FILE.bad(line, f"{text!r} must be {error}") from None


# -- words of a question --------------------------------------------------------------------------


def action_of(word: str) -> Action:
    """The action of this name.

    Raises:
        InvalidConfigError: There is none; names the nearest one.
    """
    if word not in _ACTIONS:
        raise InvalidConfigError(unknown("action", word, Action))
    return Action(word)


def resource_of(text: str) -> Resource:
    """The resource `kind:name`, or `cluster`.

    Raises:
        InvalidConfigError: It is none; names the nearest kind.
    """
    word, _, name = text.partition(":")
    if word not in _KINDS:
        raise InvalidConfigError(unknown("kind of resource", word, Kind))
    if word == Kind.CLUSTER:
        return CLUSTER
    if not name:
        raise InvalidConfigError(f"resource {text!r} must be `{word}:NAME`")
    return Resource(Kind(word), name)


def principal_of(text: str) -> str:
    """The principal `User:NAME`.

    Raises:
        InvalidConfigError: It does not begin so.
    """
    if not text.startswith(USER) or text == USER:
        raise InvalidConfigError(f"principal {text!r} must be `User:NAME`")
    return text


OPEN: Final = Rules(
    (
        Rule(
            0,
            allows=True,
            actions=frozenset(Action),
            principals=(Pattern(ANONYMOUS.name, is_prefix=False),),
            is_for_all=True,
            resources=((None, Pattern("", is_prefix=True)),),
        ),
    )
)
"""Without a file everything is allowed to everybody who gets in."""
