"""`sharecoord configs`: the flags of Kafka's kafka-configs for groups."""

from __future__ import annotations

import click

from sharecoord.cli.options import Connect, admin_options, output_options, parse_pair
from sharecoord.cli.output import Column, Output, columns, note

_COLUMNS = columns("name value", Column("SOURCE", "source", lambda entry: entry.source.value))
_MORE = columns("documentation problem")


@click.command()
@admin_options()
@click.option(
    "--entity-type",
    type=click.Choice(["groups"]),
    required=True,
    help="What has the settings: groups.",
)
@click.option("--entity-name", required=True, metavar="GROUP", help="Name of the group.")
@click.option("--describe", is_flag=True, help="Show all settings with their source.")
@click.option("--all", "all_", is_flag=True, help="Kafka's flag: all are shown anyhow.")
@click.option("--alter", is_flag=True, help="Change settings; the group need not exist yet.")
@click.option(
    "--add-config",
    "added",
    multiple=True,
    metavar="K=V[,K=[A,B]]",
    help="Settings to set (repeatable); brackets keep the commas of a value together.",
)
@click.option(
    "--delete-config",
    "deleted",
    multiple=True,
    metavar="K[,K]",
    help="Settings to set back to the default (repeatable).",
)
@click.option("--validate-only", is_flag=True, help="With --alter: check only.")
@output_options
def configs(
    connect: Connect,
    entity_type: str,
    entity_name: str,
    describe: bool,  # noqa: FBT001 - Click calls by name
    all_: bool,  # noqa: FBT001
    alter: bool,  # noqa: FBT001
    added: tuple[str, ...],
    deleted: tuple[str, ...],
    validate_only: bool,  # noqa: FBT001
    output: Output,
) -> None:
    """Show and change the settings of a share group.

    The flags are those of Kafka's kafka-configs.sh; --bootstrap-server is the coordinator.

    \b
    sharecoord configs --entity-type groups --entity-name G --describe
    sharecoord configs --entity-type groups --entity-name G --alter \\
        --add-config share.auto.offset.reset=earliest
    """  # noqa: D301 - Click's mark for lines that stay as they are
    del entity_type, all_  # there is one type, and everything is shown
    if describe == alter:
        raise click.UsageError("give one of --describe and --alter.")
    set_values = parse_added(added)
    names = [name.strip() for text in deleted for name in text.split(",") if name.strip()]
    if describe and (set_values or names or validate_only):
        raise click.UsageError(
            "--describe takes no --add-config, --delete-config or --validate-only; --alter does."
        )
    if alter and not (set_values or names):
        raise click.UsageError("--alter takes --add-config K=V or --delete-config K.")
    with connect() as admin:
        if alter:
            admin.alter_group_configs(entity_name, set_values, names, validate_only=validate_only)
            done = "The settings are valid" if validate_only else "Completed updating config"
            click.echo(f"{done} for group {entity_name}.")
            return
        entries = admin.describe_group_configs(entity_name)
    output.show(_COLUMNS if output.format == "table" else _COLUMNS + _MORE, entries)
    for entry in entries:
        if entry.problem:
            note(f"a stored value is not in force: {entry.problem}")


def parse_added(texts: tuple[str, ...]) -> dict[str, str]:
    """Reads `k=v,k=[a,b]`; refuses a part without `=`, a name set twice, and an open bracket."""
    found: dict[str, str] = {}
    for text in texts:
        for part in _split(text):
            name, text_value = parse_pair("--add-config", part)
            value = text_value.strip()
            if name in found:
                raise click.UsageError(f"--add-config {name}: it is set twice.")
            if value.startswith("[") and value.endswith("]"):
                value = value[1:-1]
            found[name] = value
    return found


def _split(text: str) -> list[str]:
    """Parts between commas that stand outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth != 0:
        raise click.UsageError(f"--add-config {text}: the brackets are not in pairs.")
    return [part for part in parts if part.strip()]
