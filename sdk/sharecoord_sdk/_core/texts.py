"""Texts of the application on their way to the wire, which holds valid UTF-8 alone.

Python's texts may hold lone surrogates: `os.listdir` makes them of file names that are not UTF-8.
One rule: a text that names something (a topic, a group, a key) is refused where it is given,
because another name would be another thing. A text that says something (a reason) is kept, with an
escape in the place of what can not be sent, because a verdict must not be lost for its words. The
same holds for NUL characters, which databases do not store in texts.
"""

from __future__ import annotations

import re
from typing import Final

#: gRPC takes headers of 16 KiB together, at most.
TOKEN_CHARS_MAX: Final = 15_000

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


def check_name(what: str, text: str) -> str:
    """Checks a text that names something: `what` is the argument or setting, for the error.

    Raises:
        ValueError: It holds a lone surrogate or a NUL character.
    """
    fix = "if it is a file name, encode it first: os.fsencode(name).decode(errors='replace')"
    to_bytes(what, text, fix)
    if "\x00" in text:
        raise ValueError(f"{what} {text!r} holds a NUL character; remove it")
    return text


def check_secret(what: str, text: str) -> str:
    """Checks a text as `check_name` does; the error does not show it.

    Raises:
        ValueError: It holds a lone surrogate or a NUL character.
    """
    try:
        return check_name(what, text)
    except ValueError:
        fix = "remove it, or encode what is not valid Unicode"
        raise ValueError(f"{what} holds a NUL character or a lone surrogate; {fix}") from None


def to_bytes(what: str, text: str, fix: str = "give bytes") -> bytes:
    """The UTF-8 of a text that stands for bytes, such as a key; NUL is a byte as any.

    Raises:
        ValueError: It holds a lone surrogate.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        place = f"character {error.start} is a lone surrogate"
        raise ValueError(f"{what} {text!r} is not valid Unicode: {place}; {fix}") from None


def escaped_text(text: str) -> str:
    """A text that says something; characters that can not be sent or stored become escapes."""
    if not isinstance(text, str) or (text.isascii() and "\x00" not in text):
        # The caller names the type of a value that is no text.
        return text
    return text.encode(errors="backslashreplace").decode().replace("\x00", "\\x00")


def is_token(text: str) -> bool:
    """Whether a text can be shown as a bearer token: visible ASCII, not too long for a header."""
    return bool(_TOKEN.fullmatch(text)) and len(text) <= TOKEN_CHARS_MAX
