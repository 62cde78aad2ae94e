"""What the audit trail says of an operator's command: resources, what was asked, what changed.

All of it comes from the command's arguments and its result. Keys, values and headers of records
never stand in a trace: keys that an operator names appear as their SHA-256, as in the column
`key_digest` of table `blocked_key`.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, Final, NamedTuple

from sharecoord.core.letters.lanes import Replayed
from sharecoord.errors import SharecoordError
from sharecoord.runtime.admin.configs import ConfigChange
from sharecoord.runtime.admin.force import ForcedRange
from sharecoord.runtime.admin.migration import ExportedPartition, ImportedPartition
from sharecoord.runtime.admin.pauses import PauseAnswer
from sharecoord.runtime.admin.reset import ResetResult
from sharecoord.runtime.letters.plan import LetterRun
from sharecoord.security.actions import (
    Resource,
    consumer_group,
    dead_letter_topic,
    group,
    topic,
)
from sharecoord.security.audit import Outcome

SHOWN_MAX: Final = 20
"""Most entries of a list or a mapping in a trace; the number of the others stands behind them."""

DIGEST_CHARS: Final = 16
"""Characters of a SHA-256 in a trace: enough to find a row, or to compare with a known key."""

_SAID_ELSEWHERE: Final = frozenset({"group_id", "group_ids", "by"})
"""Arguments that stand among the resources, or are the principal."""

Arguments = Mapping[str, Any]
"""A command's arguments by the names of its parameters."""

Values = dict[str, object]


class CommandKind(enum.Enum):
    """What a command does, which decides when the audit trail tells of it."""

    CHANGES = "changes"
    """Something may be another afterwards: each call, and each dry run."""
    READS_PAYLOADS = "reads payloads"
    """The answer has keys, values or headers of records: each call."""
    READS = "reads"
    """Only calls that were refused."""


class Trace(NamedTuple):
    """What the audit trail says of one call."""

    resources: tuple[str, ...]
    asked: Values
    before: Values
    after: Values


def trace_of(command: str, arguments: Arguments, result: Any = None) -> Trace:
    """The trace of a call.

    Args:
        command: The name of a command of `Admin`.
        arguments: Its arguments.
        result: What it returned; None when it was refused or has failed.
    """
    given = _flat(arguments)
    resources = [str(each) for each in dict.fromkeys(_resources(given))]
    asked = {name: value for name, value in given.items() if name not in _SAID_ELSEWHERE}
    before, after = ({}, {}) if result is None else COMMANDS[command].changed(given, result)
    return Trace(tuple(_first(resources)), _shown(asked.items()), before, after)


def is_told(command: str, outcome: Outcome) -> bool:
    """Whether the audit trail tells of a call that ended like this."""
    return COMMANDS[command].kind is not CommandKind.READS or outcome is Outcome.REFUSED


# -- arguments ------------------------------------------------------------------------------------


def _flat(arguments: Arguments) -> dict[str, Any]:
    """The arguments that say something; of a command that takes all in one object, its fields."""
    command = arguments.get("command")
    if command is not None:
        names = (each.name for each in dataclasses.fields(command))
        arguments = {name: getattr(command, name) for name in names}
    return {name: value for name, value in arguments.items() if not _is_empty(value)}


def _is_empty(value: object) -> bool:
    """Whether an argument says nothing. A zero, and an empty key of a record, say something."""
    if value is None or value is False:
        return True
    return isinstance(value, Sized) and not isinstance(value, bytes) and not len(value)


def _resources(given: Arguments) -> Iterable[Resource]:
    for name in ("group_id", "into_group_id"):
        if name in given:
            yield group(given[name])
    yield from map(group, given.get("group_ids", ()))
    for each in given.get("topics", ()):
        yield topic(each if isinstance(each, str) else each[0])
    if "partition" in given:
        yield topic(given["partition"].topic)
    if "consumer_group" in given:
        yield consumer_group(given["consumer_group"])
    place = given.get("place")
    letters = given.get("topic") or (place.topic if place else "")
    if letters:
        yield dead_letter_topic(letters)


def _shown(pairs: Iterable[tuple[object, object]]) -> Values:
    """The first entries of a mapping, and how many there are beside them."""
    rest = iter(pairs)
    found = {_name(name): _plain(value) for name, value in islice(rest, SHOWN_MAX)}
    more = sum(1 for _ in rest)
    return {**found, "...": f"{more} more"} if more else found


def _plain(value: object) -> object:
    """A value as texts, numbers, lists and mappings."""
    if isinstance(value, bytes):
        return f"sha256:{hashlib.sha256(value).hexdigest()[:DIGEST_CHARS]}"
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name
    if isinstance(value, SharecoordError):
        return value.reason
    if dataclasses.is_dataclass(value):
        names = (each.name for each in dataclasses.fields(value))
        return _shown((n, v) for n in names if not _is_empty(v := getattr(value, n)))
    if isinstance(value, Mapping):
        return _shown(value.items())
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _shown((n, v) for n, v in value._asdict().items() if not _is_empty(v))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in _first(value)]
    return value


def _first(values: Sequence[Any]) -> list[Any]:
    """The first values of a list, and how many there are beside them."""
    more = len(values) - SHOWN_MAX
    return [*values[:SHOWN_MAX], f"... {more} more"] if more > 0 else list(values)


def _name(name: object) -> str:
    """A key of a mapping: a place as `topic[partition]`."""
    return f"{name[0]}[{name[1]}]" if isinstance(name, tuple) else str(name)


# -- what changed ---------------------------------------------------------------------------------

Changed = tuple[Values, Values]
"""Values before and after."""


def _nothing(_given: Arguments, _result: Any) -> Changed:
    return {}, {}


def _settings(_: Arguments, change: ConfigChange) -> Changed:
    return _shown(change.before.items()), _shown(change.after.items())


def _by_partition(results: Iterable[ResetResult]) -> Changed:
    found = [each for each in results if each.error is None]
    before = (((each.topic, each.partition), each.old_offset) for each in found)
    after = (((each.topic, each.partition), each.error or each.new_offset) for each in results)
    return _shown(before), _shown(after)


def _reset(_: Arguments, results: Sequence[ResetResult]) -> Changed:
    return _by_partition(results)


def _imported(_: Arguments, results: Sequence[ImportedPartition]) -> Changed:
    return _by_partition([each.reset for each in results])


def _exported(_: Arguments, results: Sequence[ExportedPartition]) -> Changed:
    pairs = (((each.topic, each.partition), each.error or each.offset) for each in results)
    return {}, _shown(pairs)


def _deleted(_: Arguments, results: Mapping[str, SharecoordError | None]) -> Changed:
    return {}, _shown((name, error or "deleted") for name, error in results.items())


def _paused(_: Arguments, answer: PauseAnswer) -> Changed:
    return _pauses(answer, "running", "paused")


def _resumed(_: Arguments, answer: PauseAnswer) -> Changed:
    return _pauses(answer, "paused", "running")


def _pauses(answer: PauseAnswer, before: str, after: str) -> Changed:
    results = answer.results
    was = ((str(each.pause.scope), before if each.changed else after) for each in results)
    return _shown(was), _shown((str(each.pause.scope), after) for each in results)


def _forced(_: Arguments, ranges: Sequence[ForcedRange]) -> Changed:
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for each in ranges:
        records = each.last_offset - each.first_offset + 1
        before[each.before] += records
        after[each.after] += records
    return dict(before), dict(after)


def _unblocked(given: Arguments, not_blocked: Sequence[bytes]) -> Changed:
    keys = set(given["keys"])
    return {"blocked": len(keys) - len(not_blocked)}, {"blocked": 0}


def _letters(_: Arguments, run: LetterRun) -> Changed:
    letters = {"run_id": run.run_id, "letters": run.letters}
    return {}, {**letters, **_shown(run.parts.items())}


def _withdrawn(_: Arguments, letters: int) -> Changed:
    return {}, {"letters": letters}


def _replayed(_: Arguments, parts: Sequence[Replayed]) -> Changed:
    pairs = [
        ((part.key.topic, part.key.partition), f"{part.start_offset} to {part.stops_at - 1}")
        for part in parts
        if part.records
    ]
    return {}, {"records": sum(part.records for part in parts), **_shown(pairs)}


class Command(NamedTuple):
    """How the audit trail takes a command."""

    kind: CommandKind
    changed: Callable[[Arguments, Any], Changed] = _nothing
    """Values before and after, from the arguments and the result."""


COMMANDS: Final[Mapping[str, Command]] = {
    "list_groups": Command(CommandKind.READS),
    "describe_groups": Command(CommandKind.READS),
    "describe_group_configs": Command(CommandKind.READS),
    "alter_group_configs": Command(CommandKind.CHANGES, _settings),
    "reset_offsets": Command(CommandKind.CHANGES, _reset),
    "delete_offsets": Command(CommandKind.CHANGES, _deleted),
    "delete_groups": Command(CommandKind.CHANGES, _deleted),
    "pause_group": Command(CommandKind.CHANGES, _paused),
    "resume_group": Command(CommandKind.CHANGES, _resumed),
    "force_records": Command(CommandKind.CHANGES, _forced),
    "list_in_flight": Command(CommandKind.READS),
    "replay": Command(CommandKind.CHANGES, _replayed),
    # Also a list has the beginnings of keys.
    "list_dead_letters": Command(CommandKind.READS_PAYLOADS),
    "show_dead_letter": Command(CommandKind.READS_PAYLOADS),
    "redrive_dead_letters": Command(CommandKind.CHANGES, _letters),
    "discard_dead_letters": Command(CommandKind.CHANGES, _letters),
    "withdraw_redrive": Command(CommandKind.CHANGES, _withdrawn),
    "block_keys": Command(CommandKind.CHANGES),
    "unblock_keys": Command(CommandKind.CHANGES, _unblocked),
    # Its keys are those that operators have named.
    "list_blocked_keys": Command(CommandKind.READS),
    "import_offsets": Command(CommandKind.CHANGES, _imported),
    "export_offsets": Command(CommandKind.CHANGES, _exported),
    "describe_coordinator": Command(CommandKind.READS),
    "describe_access": Command(CommandKind.READS),
}
"""Every command of `Admin` that is a call of AdminService."""
