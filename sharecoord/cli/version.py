"""`sharecoord version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import click

from sharecoord import __version__
from sharecoord.cli.options import output_options
from sharecoord.cli.output import Output, columns

_PARTS = ("sharecoord-sdk", "grpcio", "protobuf", "confluent-kafka", "sqlalchemy")


@click.command()
@click.option("--verbose", is_flag=True, help="Also Python and what it is built on.")
@output_options
def version(verbose: bool, output: Output) -> None:  # noqa: FBT001
    """Print the version."""
    if output.format == "table" and not verbose:
        click.echo(f"sharecoord {__version__}")
        return
    rows = [{"name": "sharecoord", "version": __version__}]
    if verbose:
        rows.append({"name": "python", "version": platform.python_version()})
        rows += [{"name": name, "version": _installed(name)} for name in _PARTS]
    output.show(columns("name version"), rows)


def _installed(name: str) -> str:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return ""
