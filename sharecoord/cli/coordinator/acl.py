"""`sharecoord acl`: what the rules of a coordinator say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sharecoord.cli.options import FILE, Connect, admin_options, output_options
from sharecoord.cli.output import Output, columns, note

if TYPE_CHECKING:
    from sharecoord_sdk.admin import AccessDescription

_COLUMNS: Final = columns("allowed line why")

DENIED: Final = 1
"""The exit code of a question that is answered with no."""


@click.group()
def acl() -> None:
    """Ask what somebody may do.

    \b
    sharecoord acl test --principal User:alice --action consume --group orders
    sharecoord acl test --principal User:alice --action describe --cluster --rules FILE
    """  # noqa: D301 - Click's mark for lines that stay as they are


@acl.command()
@admin_options()
@click.option("--principal", required=True, metavar="User:NAME", help="Who.")
@click.option(
    "--principal-group",
    "principal_groups",
    multiple=True,
    metavar="GROUP",
    help="A group that its identity provider, or its token, names (repeatable).",
)
@click.option("--action", required=True, help="What, such as consume or describe.")
@click.option("--group", help="With this share group.")
@click.option("--topic", help="With this topic.")
@click.option("--dead-letter-topic", help="With this dead-letter topic.")
@click.option("--consumer-group", help="With this consumer group of Kafka.")
@click.option("--cluster", is_flag=True, help="With the coordinators themselves.")
@click.option(
    "--rules",
    "rules_file",
    type=FILE,
    help="Ask this file in place of the rules that a coordinator has in force.",
)
@output_options
@click.pass_context
def test(
    ctx: click.Context,
    /,
    connect: Connect,
    principal: str,
    principal_groups: tuple[str, ...],
    action: str,
    rules_file: Path | None,
    output: Output,
    *,
    cluster: bool,
    **named: str | None,
) -> None:
    """Say whether a principal may do something, and which line of the rules says so.

    Exit codes: 0 yes, 1 no (or an error, which is on standard error).
    """
    resources = [f"{kind.replace('_', '-')}:{name}" for kind, name in named.items() if name]
    resources += ["cluster"] if cluster else []
    if len(resources) != 1:
        raise click.UsageError(
            "give one of --group, --topic, --dead-letter-topic, --consumer-group, --cluster."
        )
    if rules_file is not None:
        answer = _asked(rules_file, principal, principal_groups, action, resources[0])
    else:
        with connect() as admin:
            answer = admin.describe_access(
                principal, action, resources[0], principal_groups=principal_groups
            )
        if answer.rules_problem:
            note(f"the present file of rules is not in force: {answer.rules_problem}")
    output.show(_COLUMNS, [answer])
    if not answer.allowed:
        click.get_current_context().exit(DENIED)


def _asked(
    path: Path, principal: str, groups: tuple[str, ...], action: str, resource: str
) -> AccessDescription:
    """The answer of a file."""
    from sharecoord_sdk.admin import AccessDescription

    from sharecoord.security.files import read_file
    from sharecoord.security.principals import Principal
    from sharecoord.security.rules import action_of, principal_of, read_rules, resource_of

    rules = read_rules(read_file("--rules", str(path)))
    who = Principal(principal_of(principal), frozenset(groups))
    decision = rules.decide(who, action_of(action), resource_of(resource))
    return AccessDescription(decision.is_allowed, decision.line, decision.why, "")
