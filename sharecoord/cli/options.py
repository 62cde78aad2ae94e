"""Options that commands share: connection, output, debugging."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sharecoord.cli.failures import set_debug
from sharecoord.cli.output import FORMATS

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    # Generic in Click's newer releases only.
    ParamType = click.ParamType

DEFAULT_BOOTSTRAP_SERVER: Final = "localhost:7070"
BOOTSTRAP_VARIABLE: Final = "SHARECOORD_BOOTSTRAP_SERVER"

PARTITION: Final = click.IntRange(0, 2**31 - 1)
OFFSET: Final = click.IntRange(0, 2**63 - 1)
"""As Kafka's protocol has them."""

FILE: Final = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


def connection_options(function: F) -> F:
    """--bootstrap-server and --command-config."""
    for option in (
        click.option(
            "--command-config",
            type=FILE,
            help="Properties file for the connection to the coordinator (security.protocol, "
            "ssl.*, sasl.*).",
        ),
        click.option(
            "--bootstrap-server",
            envvar=BOOTSTRAP_VARIABLE,
            default=DEFAULT_BOOTSTRAP_SERVER,
            show_default=True,
            show_envvar=True,
            metavar="HOST:PORT",
            help="The coordinator (not Kafka): host:port[,host:port] or unix:/path.",
        ),
    ):
        function = option(function)
    return function


def timeout_option(function: F) -> F:
    """--timeout."""
    return _timeout_option(30_000)(function)


def long_timeout_option(function: F) -> F:
    """--timeout of what looks through whole topics."""
    return _timeout_option(300_000)(function)


def _timeout_option(default_ms: int) -> Callable[[F], F]:
    return click.option(
        "--timeout",
        "timeout_ms",
        type=click.IntRange(1),
        default=default_ms,
        show_default=True,
        metavar="MS",
        help="Longest wait for one answer, in milliseconds.",
    )


def output_options(function: F) -> F:
    """-o and --no-color."""
    for option in (
        click.option("--no-color", is_flag=True, help="Print without colours (as NO_COLOR)"),
        click.option(
            "-o",
            "--output",
            type=click.Choice(FORMATS),
            default="table",
            show_default=True,
            help="How to print.",
        ),
    ):
        function = option(function)
    return function


def debug_option(function: F) -> F:
    """--debug, which may stand behind the command too."""

    def note(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001
        if value:
            set_debug(ctx)

    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=note,
        help="Show the traceback of an error.",
    )(function)
