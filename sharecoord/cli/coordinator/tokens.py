"""`sharecoord tokens`: the file of tokens that a coordinator accepts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import click

from sharecoord.cli.options import FILE, options, output_options
from sharecoord.cli.output import Column, Output, columns, iso_time, note

_COLUMNS: Final = columns(
    "name",
    Column("GROUPS", "groups", lambda token: ",".join(token.groups)),
    Column("EXPIRES", "expires", lambda token: iso_time(token.ends_ms or 0)),
    "line",
)
_DAY_MS: Final = 86_400_000

file_options: Final = options(
    click.option(
        "--file",
        "path",
        type=click.Path(dir_okay=False),
        help="The file of tokens; without it what serve would take "
        "(SHARECOORD_SECURITY__TOKENS_FILE, or security.tokens.file of --config).",
    ),
    click.option("--config", "config_file", type=FILE, help="YAML file, as for serve."),
)


def _path(path: str | None, config_file: Path | None) -> Path:
    from sharecoord.config.process import load

    found = load(config_file, os.environ, {"security.tokens.file": path}).security.tokens_file
    if not found:
        raise click.UsageError(
            "there is no file of tokens: give --file, or set security.tokens.file."
        )
    return Path(found)


@click.group()
def tokens() -> None:
    """Create and list tokens, with which clients prove who they are.

    \b
    sharecoord tokens create NAME [--group GROUP]... [--days N] [--scram] --file FILE
    sharecoord tokens list --file FILE

    A coordinator reads the file (security.tokens.file) again when it changes. To replace a token
    without an outage, create a second one of the same name, hand it out, and remove the older entry
    from the file: without its entry a token is worth nothing.
    """  # noqa: D301 - Click's mark for lines that stay as they are


@tokens.command()
@click.argument("name")
@click.option("--group", "groups", multiple=True, help="A group of the principal (repeatable).")
@click.option("--days", type=click.IntRange(1, 36_500), help="Days until it expires, else never.")
@click.option("--scram", is_flag=True, help="Also for SASL's SCRAM-SHA-256 and -512 (Kafka port).")
@file_options
def create(
    name: str,
    groups: tuple[str, ...],
    days: int | None,
    path: str | None,
    config_file: Path | None,
    *,
    scram: bool,
) -> None:
    """Add a token to the file and print it, this once, on stdout.

    Its holder is the principal User:NAME. The file has sums of the token only.
    """
    from sharecoord.security.tokens import create_token

    place = _path(path, config_file)
    is_new = not place.exists()
    ends_ms = None if days is None else time.time_ns() // 1_000_000 + days * _DAY_MS
    secret = create_token(place, name, groups=groups, ends_ms=ends_ms, scram=scram)
    note(f"a token for User:{name} is in {place}; it is shown this once:")
    click.echo(secret)
    note(
        "its client takes it as security.protocol=sasl_ssl, sasl.mechanism=PLAIN, "
        f"sasl.username={name}, sasl.password=(the token)"
    )
    if is_new:
        note("the new file is for this user alone: let the coordinator run as the same one")


@tokens.command("list")
@file_options
@output_options
def list_tokens(path: str | None, config_file: Path | None, output: Output) -> None:
    """List the names, groups and ends (UTC) of tokens, and the lines of the file."""
    from sharecoord.security.files import read_file
    from sharecoord.security.tokens import SETTING, read_tokens

    place = str(_path(path, config_file))
    output.show(_COLUMNS, read_tokens({SETTING: read_file(SETTING, place)}).tokens)
