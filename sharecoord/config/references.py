"""References in the values of settings: `${file:PATH}` and `${env:NAME}`.

What is secret then stands in a file or a variable of its own, not beside the other settings and not
on a command line. A reference may be the whole value or a part of it. It is replaced once, when the
settings are read, and what it brings is not searched for references again. Any other `${…}` is a
plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sharecoord.errors import InvalidConfigError

FILE_BYTES_MAX: Final = 1 << 20
"""Largest file of a reference: as much as a Secret of Kubernetes holds (1 MiB)."""

_REFERENCE: Final = re.compile(r"\$\{(file|env):([^}]*)\}")
_LAST_NEWLINE: Final = re.compile(r"\r?\n\Z")


def has_reference(text: str) -> bool:
    """Whether some part of the text is a reference."""
    return _REFERENCE.search(text) is not None


def is_reference(text: str) -> bool:
    """Whether the text is one reference and nothing else, so that it may be shown."""
    return _REFERENCE.fullmatch(text) is not None


def resolve(text: str, environ: Mapping[str, str], *, name: str, where: str = "") -> str:
    """The text with what its references stand for.

    `${file:PATH}` is the content of a file in UTF-8 without its last line end, `${env:NAME}` the
    value of an environment variable. Between `://` and `@` of a URL, where user and password stand,
    the content is percent-encoded: a password may have any characters.

    Args:
        text: The value as it was written.
        environ: All environment variables.
        name: The setting, named in errors.
        where: Place of the value, put in front of an error.

    Raises:
        InvalidConfigError: A file or a variable is missing, empty, too large, or no text; names
            setting, place and fix, and quotes nothing of the content.
    """

    def content(match: re.Match[str]) -> str:
        kind, source = match.groups()
        try:
            found = _file(source) if kind == "file" else _variable(source, environ)
        except ValueError as error:
            place = f"{where}: " if where else ""
            raise InvalidConfigError(
                f"{place}{name} refers to {match[0]}, and {error}.", metadata={"key": name}
            ) from None
        return quote(found, safe="") if _is_in_credentials(text, match) else found

    return _REFERENCE.sub(content, text)


def _is_in_credentials(text: str, match: re.Match[str]) -> bool:
    """Whether the reference stands where a URL has user and password."""
    after = _REFERENCE.sub("", text[match.end() :])
    return "://" in text[: match.start()] and "@" in after


def _file(source: str) -> str:
    """The content of a file; ValueError with the end of a sentence when there is none."""
    if not source:
        raise ValueError("no file is named: write ${file:PATH}")
    try:
        with Path(source).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "its path has a zero byte"
        fix = "it must be a file that this process can read, with the value alone"
        raise ValueError(f"the file cannot be read ({reason}): {fix}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ValueError(f"the file has more than {FILE_BYTES_MAX} bytes: keep the value alone")
    try:
        return _checked(_LAST_NEWLINE.sub("", content.decode("utf-8")), "the file")
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8: write the value as text") from None


def _variable(source: str, environ: Mapping[str, str]) -> str:
    """The value of a variable; ValueError with the end of a sentence when there is none."""
    if source not in environ:
        raise ValueError("this environment variable is not set: set it, or correct its name")
    return _checked(environ[source], "this environment variable")


def _checked(text: str, what: str) -> str:
    if not text:
        raise ValueError(f"{what} is empty: write the value into it, or leave the setting out")
    if "\0" in text:
        raise ValueError(f"{what} has a zero byte in it: write the value as text")
    return text
