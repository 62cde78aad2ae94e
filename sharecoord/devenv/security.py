"""Files of a large organisation's security: a thousand rules and a thousand tokens.

Coordinators under test and under measurement get them. The rules that matter stand at the end, so
that all others are looked at before them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

RULES: Final = 1_000
"""Lines of the file of rules: one for each of as many teams."""

TOKENS: Final = 1_000
"""Entries of the file of tokens."""

_QUOTA: Final = (
    '  - {principals: ["*"], members: 1000000, streams: 1000000, groups: 1000000, '
    "records_in_flight: 1000000000, admin_requests_per_s: 1000000}"
)
"""Larger than what any test or measurement needs: quotas are counted, and nobody is refused."""


def rules_text(principals: Sequence[str]) -> str:
    """A file of `RULES` lines, whose last rule allows everything to these principals.

    The lines before it are about teams that nobody belongs to.
    """
    head = ["quotas:", _QUOTA, "rules:"]
    names = ", ".join(f'"{each}"' for each in principals)
    last = f'  - {{allow: ["*"], principals: [{names}], resources: ["*"]}}'
    teams = [_team(number) for number in range(RULES - len(head) - 1)]
    return "\n".join([*head, *teams, last]) + "\n"


def _team(number: int) -> str:
    """A rule of a team; every tenth takes something away."""
    name = f"team-{number:04}"
    does, kinds = "allow: [consume, describe]", "group topic"
    if number % 10 == 9:
        does, kinds = "deny: [pause, delete]", "group"
    resources = ", ".join(f'"{kind}:{name}-*"' for kind in kinds.split())
    return (
        f'  - {{{does}, principals: ["User:{name}-*", "Group:{name}"], resources: [{resources}]}}'
    )


def write_security(
    folder: Path, principals: Sequence[str] = ("User:anonymous", "*")
) -> dict[str, str]:
    """Writes both files into an existing folder.

    Args:
        folder: Also gets the audit trail.
        principals: Who may do everything.

    Returns:
        The settings of a coordinator that name the files.
    """
    rules, tokens = folder / "rules.yaml", folder / "tokens.yaml"
    rules.write_text(rules_text(principals), encoding="utf-8")
    lines = (
        f"- {{name: {token_name(number)}, sha256: {_sha256(token_of(number))}}}\n"
        for number in range(TOKENS)
    )
    tokens.write_text("".join(lines), encoding="utf-8")
    return {
        "security.rules.file": str(rules),
        "security.tokens.file": str(tokens),
        "security.audit.sink": f"file:{folder / 'audit.jsonl'}",
    }


def token_of(number: int = TOKENS - 1) -> str:
    """The token of an entry of the file, by default of the last one; it opens nothing else."""
    return f"sct_of-a-test-{number:04}"


def token_name(number: int = TOKENS - 1) -> str:
    """The name of an entry of the file, by default of the last one."""
    return f"worker-{number:04}"


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
