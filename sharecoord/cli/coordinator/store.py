"""`sharecoord store`: check, migrate, back up and restore the database of a coordinator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from sharecoord.cli.failures import EXIT_ERROR, Failure, failure_of, is_debug
from sharecoord.cli.options import FILE, options, output_options
from sharecoord.cli.output import Output, columns, note

if TYPE_CHECKING:
    from sharecoord.app import StoreTools

_COLUMNS: Final = columns("table row finding=problem fix")

_PATH: Final = click.Path(path_type=Path)


class Unchecked(Failure):
    """Ends `store check` because the store could not be read: nothing is known about it."""

    exit_code = 2


store_options: Final = options(
    click.option(
        "--store",
        "url",
        metavar="URL",
        help="The store, as for serve: sqlite:///PATH, postgresql://…, mysql://…; without it "
        "what serve would take (SHARECOORD_STORE__URL, --config, or its default). A password "
        "belongs into the last two, or is written as ${file:PATH} or ${env:NAME}.",
    ),
    click.option("--config", "config_file", type=FILE, help="YAML file, as for serve."),
)


def _tools(url: str | None, config_file: Path | None) -> StoreTools:
    from sharecoord.config.process import load

    config = load(config_file, os.environ, {"store.url": url})
    from sharecoord.app import store_tools

    return store_tools(config)


@click.group()
def store() -> None:
    """Check, migrate, back up and restore a store.

    \b
    sharecoord store check --store URL
    sharecoord store backup FILE --store URL
    sharecoord store restore FILE --store URL [--force]
    sharecoord store migrate --store URL
    """  # noqa: D301 - Click's mark for lines that stay as they are


@store.command()
@store_options
@output_options
@click.pass_context
def check(ctx: click.Context, url: str | None, config_file: Path | None, output: Output) -> None:
    """Look whether every row is sound; coordinators may run.

    Exit codes: 0 sound, 1 there are findings, 2 the store could not be looked at.
    """
    try:
        tools = _tools(url, config_file)
        report = tools.check()
    except Exception as error:
        if is_debug(ctx):
            raise
        raise Unchecked(failure_of(error).message) from error
    output.show(_COLUMNS, report.findings)
    if report.more:
        note(f"and {report.more} more")
    facts, count = report.facts, len(report.findings) + report.more
    told = "sound" if not count else f"{count} finding{'s' if count > 1 else ''}"
    note(
        f"{tools.name}: {told}; {sum(report.rows.values())} rows, schema {facts.revision}, "
        f"Kafka cluster {facts.cluster_id or '(not known)'}"
    )
    if report.findings:
        ctx.exit(EXIT_ERROR)


@store.command()
@click.argument("file", type=_PATH)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@store_options
def backup(
    file: Path,
    force: bool,  # noqa: FBT001 - Click calls by name
    url: str | None,
    config_file: Path | None,
) -> None:
    """Write a consistent state of the store to FILE; coordinators may run.

    FILE is whole or not there, for this user alone, and fits every database.
    """
    header = _tools(url, config_file).backup(file, replace=force)
    click.echo(
        f"Backed up {header.total} rows to {file} (schema {header.schema_revision}, Kafka cluster "
        f"{header.cluster_id or 'not known'}, {header.taken_at})."
    )


@store.command()
@click.argument("file", type=_PATH)
@click.option("--force", is_flag=True, help="Replace what the store holds.")
@click.option("--force-cluster", is_flag=True, help="Also a store of another Kafka cluster.")
@store_options
def restore(
    file: Path,
    force: bool,  # noqa: FBT001 - Click calls by name
    force_cluster: bool,  # noqa: FBT001
    url: str | None,
    config_file: Path | None,
) -> None:
    """Put the state of FILE into an empty store that no coordinator has; all or nothing.

    Records that were acknowledged after the backup are delivered again. Groups and topics that
    were first used after it begin anew at share.auto.offset.reset.
    """
    tools = _tools(url, config_file)
    header = tools.restore(file, replace=force, other_cluster=force_cluster)
    click.echo(f"Restored {header.total} rows of {header.taken_at} to {tools.name}.")
    note(
        "what was acknowledged, counted or configured after that time is forgotten: those records "
        "are delivered again; groups and topics that were first used after it begin at "
        "share.auto.offset.reset"
    )


@store.command()
@store_options
def migrate(url: str | None, config_file: Path | None) -> None:
    """Bring the schema to this release, when no coordinator runs.

    Only migrations that need downtime wait for this; all others run when a coordinator starts.
    """
    tools = _tools(url, config_file)
    before, after = tools.migrate()
    if before == after:
        click.echo(f"{tools.name} has schema {after} already; nothing to do.")
    elif before:
        click.echo(f"Migrated {tools.name} from schema {before} to {after}.")
    else:
        click.echo(f"Made schema {after} in {tools.name}, which was empty.")
