"""`sharecoord keys`: blocks the records of one key, while all others go on."""

from __future__ import annotations

import click

from sharecoord.cli.failures import EXIT_ERROR
from sharecoord.cli.options import Connect, admin_options, group_option, options, output_options
from sharecoord.cli.output import Column, Output, columns, iso_time, note

_COLUMNS = columns(
    Column("KEY", "key", lambda entry: _text(entry.key)),
    Column("KEY-HEX", "key_hex", lambda entry: entry.key.hex()),
    Column("SINCE", "since", lambda entry: iso_time(entry.since_ms)),
    "waiting=waiting_records reason",
)


@click.group()
def keys() -> None:
    """Block, unblock and list keys of groups that keep order by key."""


_key_options = options(
    group_option,
    click.option("--key", "texts", multiple=True, help="The key as text (repeatable)."),
    click.option("--key-hex", "hex_", multiple=True, help="The same in hexadecimal."),
)


@keys.command()
@admin_options()
@_key_options
@click.option("--reason", default="", help="Why, for those who list it.")
def block(
    connect: Connect, group: str, texts: tuple[str, ...], hex_: tuple[str, ...], reason: str
) -> None:
    """Hand out no records of a key from now on; what is under a lock runs on.

    \b
    sharecoord keys block --group billing --key customer-17 --reason "ticket 4711"
    """  # noqa: D301 - Click's mark for lines that stay as they are
    named = _named(texts, hex_)
    with connect() as admin:
        admin.block_keys(group, named, reason=reason)
    click.echo(f"Blocked {_count(len(named))} of group {group}.")


@keys.command()
@admin_options()
@_key_options
@click.option("--all", "all_", is_flag=True, help="All blocked keys of the group.")
@click.pass_context
def unblock(
    ctx: click.Context,
    connect: Connect,
    group: str,
    texts: tuple[str, ...],
    hex_: tuple[str, ...],
    all_: bool,  # noqa: FBT001 - Click calls by name
) -> None:
    """Hand out records of a key again, in their order."""
    if all_ and (texts or hex_):
        raise click.UsageError("--all takes no --key or --key-hex.")
    named = [] if all_ else _named(texts, hex_)
    with connect() as admin:
        if all_:
            named = [entry.key for entry in admin.list_blocked_keys(group)]
        missing = admin.unblock_keys(group, named) if named else []
    click.echo(f"Unblocked {_count(len(set(named)) - len(missing))} of group {group}.")
    for key in missing:
        note(f"sharecoord: error: key {_text(key) or key.hex()!r} was not blocked")
    if missing:
        ctx.exit(EXIT_ERROR)


@keys.command("list")
@admin_options()
@group_option
@output_options
def list_(connect: Connect, group: str, output: Output) -> None:
    """List the blocked keys: since when, and how many records of each wait."""
    with connect() as admin:
        found = admin.list_blocked_keys(group)
    output.show(_COLUMNS, found)
    if not found:
        note(f"group '{group}' has no blocked keys")


def _named(texts: tuple[str, ...], hex_: tuple[str, ...]) -> list[bytes]:
    """The keys of the options, each once; refuses none, and one that is not hexadecimal."""
    named = [text.encode() for text in texts]
    for text in hex_:
        try:
            named.append(bytes.fromhex(text))
        except ValueError:
            raise click.UsageError(
                f"--key-hex {text}: it must be pairs of hexadecimal digits, such as 6b3137."
            ) from None
    if not named:
        raise click.UsageError("name the key with --key TEXT or --key-hex HEX.")
    return list(dict.fromkeys(named))


def _text(key: bytes) -> str | None:
    """A key as text, if it is text."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _count(number: int) -> str:
    return "1 key" if number == 1 else f"{number} keys"
