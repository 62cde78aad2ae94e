"""Keys, values and headers on the command line: text where it is text, else `hex:` and digits."""

from __future__ import annotations

import click

HEX = "hex:"


def shown(content: bytes | None) -> str | None:
    """Content as text; what is no text, or would steer the terminal, in hexadecimal."""
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return HEX + content.hex()
    if text.startswith(HEX) or not all(c.isprintable() or c in "\t\n\r" for c in text):
        return HEX + content.hex()
    return text


def parse_content(option: str, text: str) -> bytes:
    """Reads what `shown` prints.

    Raises:
        click.UsageError: Behind `hex:` are no pairs of hexadecimal digits.
    """
    if not text.startswith(HEX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(HEX))
    except ValueError:
        raise click.UsageError(
            f"{option} {text}: behind {HEX} stand pairs of hexadecimal digits, such as {HEX}00ff."
        ) from None
