"""Writes the tables of docs/security.md: what each action means, and what each call needs.

`python -m sharecoord.runtime.admin.docs` writes the part between the two marks, `--check` says
whether it is current. It stands beside the commands, because `security` knows none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from sharecoord.config.docs import between, table, write_or_check
from sharecoord.runtime.admin.operators import DEAD_LETTER_TOPIC, EACH, EXPORT_GROUP, NEEDS
from sharecoord.security.actions import MEANINGS, group
from sharecoord.security.guard import Need

DEFAULT_OUTPUT: Final = Path(__file__).resolve().parents[3] / "docs" / "security.md"
BEGIN: Final = "<!-- from the rules' actions by `python -m sharecoord.runtime.admin.docs` -->"
END: Final = "<!-- end -->"


def _arguments(**optional: Any) -> Mapping[str, Any]:
    """Arguments that fit every command, with the names that stand in the table."""
    fields = {"group_id": "GROUP", "into_group_id": "SIDE-GROUP", "consumer_group": "NAME"}
    command = SimpleNamespace(
        **fields,
        topic=optional.get("topic", ""),
        topics=optional.get("topics", ()),
        spans=(),
        with_settings=bool(optional),
    )
    return {**fields, "set_values": {}, "command": command, **optional}


PLAIN: Final = _arguments()
"""A call that names nothing but what it must."""

FULL: Final = _arguments(
    set_values={DEAD_LETTER_TOPIC: "TOPIC", EXPORT_GROUP: "NAME"}, topic="TOPIC", topics=("TOPIC",)
)
"""A call that names all that it can."""


def render() -> str:
    """The tables, without the marks."""
    meanings = [(f"`{each.kind}`", f"`{each.action}`", each.text) for each in MEANINGS]
    parts = [table("Resource | Action | What it allows", meanings)]
    parts.append("What each call of an operator needs, by its name in the audit trail:\n")
    parts.append(table("Call | Needs | And, where the call names or sets them", _calls()))
    return "\n".join(parts)


def _calls() -> Iterator[Sequence[str]]:
    for name, needs in NEEDS.items():
        if name in EACH:
            text = f"{_texts([(EACH[name], group('GROUP'))])}, for each group by itself"
            yield f"`{name}`", text, ""
            continue
        always = list(needs(PLAIN))
        more = [need for need in needs(FULL) if need not in always]
        yield f"`{name}`", _texts(always), _texts(more)


def _texts(needs: Iterable[Need]) -> str:
    return ", ".join(f"`{action}` on `{resource}`" for action, resource in needs)


def filled(text: str) -> str:
    """The page with current tables.

    Raises:
        ValueError: The marks are not in it.
    """
    return between(text, BEGIN, END, render())


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the tables of docs/security.md; see `write_or_check`."""
    return write_or_check("sharecoord.runtime.admin.docs", DEFAULT_OUTPUT, filled, arguments)


if __name__ == "__main__":
    sys.exit(main())
