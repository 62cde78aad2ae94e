"""Options that commands share: connection and output."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sharecoord.cli.connection import Services
from sharecoord.cli.output import FORMATS, Output

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

FOLDER_CONTEXT: Final = {
    "token_normalize_func": lambda name: "out" if name == "output" else name,
}
"""Settings of commands that write a folder: it is --out, and --output means the same."""

FILE: Final = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Options as one decorator, shown in this order."""

    def add(function: F) -> F:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return add


connection_options: Final = options(
    click.option(
        "--bootstrap-server",
        envvar=BOOTSTRAP_VARIABLE,
        default=DEFAULT_BOOTSTRAP_SERVER,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The coordinator (not Kafka): host:port[,host:port] or unix:/path.",
    ),
    click.option(
        "--command-config",
        type=FILE,
        help="Properties file for the connection to the coordinator (security.protocol, "
        "ssl.*, sasl.*).",
    ),
)


def admin_options(timeout_ms: int = 30_000) -> Callable[[F], F]:
    """The options of a connection; the command gets what opens it, as `connect`."""

    def add(function: F) -> F:
        @functools.wraps(function)
        def command(
            *, bootstrap_server: str, command_config: Path | None, timeout_ms: int, **given: Any
        ) -> object:
            services = click.get_current_context().ensure_object(Services)
            connect = functools.partial(
                services.admin, bootstrap_server, command_config, timeout_ms
            )
            return function(connect=connect, **given)

        timeout = click.option(
            "--timeout",
            "timeout_ms",
            type=click.IntRange(1),
            default=timeout_ms,
            show_default=True,
            metavar="MS",
            help="Longest wait for one answer, in milliseconds.",
        )
        return options(connection_options, timeout)(cast("F", command))

    return add


LONG_TIMEOUT_MS: Final = 300_000
"""Of what looks through whole topics."""

no_color_option: Final = click.option(
    "--no-color", is_flag=True, help="Print without colours (as NO_COLOR)"
)


def output_options(function: F) -> F:
    """-o and --no-color; the command gets them as one `output`."""

    @functools.wraps(function)
    def command(*, output: str, no_color: bool, **given: Any) -> object:
        return function(output=Output(output, not no_color), **given)

    form = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print.",
    )
    return options(form, no_color_option)(cast("F", command))


group_option: Final = click.option("--group", required=True, help="The share group.")
