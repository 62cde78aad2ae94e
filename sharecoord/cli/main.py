"""The entry point `sharecoord`. A command is imported when it is called; `--help` imports none."""

from __future__ import annotations

import importlib
from typing import Any, Final, NamedTuple

import click

from sharecoord.cli.failures import failure_of, is_debug, set_debug


class Lazy(NamedTuple):
    """A command that is imported when it is called; its function has its name, with `_` for `-`."""

    module: str
    """Its module, below `sharecoord.cli`."""
    help: str
    """Its line in the list of commands."""


COMMANDS: Final[dict[str, Lazy]] = {
    "serve": Lazy("coordinator.serve", "Run a coordinator next to a Kafka cluster."),
    "demo": Lazy("demo", "Show what it does, on a fake or a real Kafka."),
    "groups": Lazy("groups.command", "List, describe, reset and delete share groups."),
    "configs": Lazy("groups.configs", "Show and change the settings of share groups."),
    "keys": Lazy("groups.keys", "Block, unblock and list keys of groups that keep order."),
    "consume": Lazy("records.consume", "Print the records of a topic as a share consumer."),
    "records": Lazy("records.command", "List records in flight; tell the life of one."),
    "replay": Lazy("records.replay", "Deliver a part of a topic to a side group."),
    "dead-letters": Lazy("records.dead_letters", "Find, redrive and discard dead letters."),
    "config": Lazy("coordinator.config", "Show the configuration of a coordinator."),
    "store": Lazy("coordinator.store", "Check, migrate, back up and restore a store."),
    "tokens": Lazy("coordinator.tokens", "Create and list tokens of clients."),
    "acl": Lazy("coordinator.acl", "Ask what somebody may do."),
    "events": Lazy(
        "coordinator.events", "List, join, delete and check the files of the event log."
    ),
    "analyze": Lazy("analyze.command", "Find out from events how a group did (Spark)."),
    "bench": Lazy("bench", "Measure throughput, latency and fairness."),
    "version": Lazy("version", "Print the version."),
}


class LazyGroup(click.Group):
    """A group of commands, given as a table; turns errors into one line and an exit code."""

    def __init__(self, *args: Any, table: dict[str, Lazy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module."""
        found = self._table.get(cmd_name)
        if found is None:
            return None
        module = importlib.import_module(f"sharecoord.cli.{found.module}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        _add_debug(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self._table.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command; `sharecoord.cli.failures` turns errors into lines."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if is_debug(ctx):
                raise
            raise failure_of(error) from error


def _add_debug(command: click.Command) -> None:
    """Adds --debug to a command and its subcommands, so that it may stand behind them."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _add_debug(each)
        if not command.invoke_without_command:
            return
    if _DEBUG not in command.params:
        command.params.append(_DEBUG)


def _note_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001
    if value:
        set_debug(ctx)


_DEBUG: Final = click.Option(
    ["--debug"],
    is_flag=True,
    expose_value=False,
    callback=_note_debug,
    help="Show the traceback of an error.",
)


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
def cli() -> None:
    """Share groups (KIP-932) for any Apache Kafka cluster.

    Start a coordinator with `sharecoord serve`. The admin commands take the flags of Kafka's own
    tools; their --bootstrap-server is the coordinator. Exit codes: 0 done, 1 error, 2 wrong usage,
    3 the coordinator, its store or Kafka does not answer.
    """


cli.params.append(_DEBUG)


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    cli(prog_name="sharecoord")
