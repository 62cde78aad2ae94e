"""Java's `.properties` format and the value of `sasl.jaas.config`, read as Java reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_BLANKS: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE_DIGITS: Final = 4


class PropertiesSyntaxError(ValueError):
    """A text that breaks the rules of its format."""

    def __init__(self, line: int, problem: str) -> None:
        """Takes the number of the line, from 1, and what is wrong with it."""
        super().__init__(problem)
        self.line = line


class Property(NamedTuple):
    """An entry of a properties file; `line` counts from 1."""

    key: str
    value: str
    line: int


def parse_java_properties(text: str) -> list[Property]:
    r"""Reads Java's format: `key=value`, `key: value`, `key value`, `\` escapes, continuations.

    Returns:
        Entries of the whole file in order, duplicates included.

    Raises:
        PropertiesSyntaxError: A malformed `\uXXXX`.
    """
    properties = []
    for number, line in _logical_lines(text):
        key, value = _split(line)
        properties.append(Property(_unescape(key, number), _unescape(value, number), number))
    return properties


def parse_plain_properties(text: str) -> list[Property]:
    """Reads librdkafka's format: `key=value` lines, `#` comments, no escapes.

    Raises:
        PropertiesSyntaxError: A line has no `=` or no key.
    """
    properties = []
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise PropertiesSyntaxError(number, "the line is not key=value")
        properties.append(Property(key.strip(), value.strip(), number))
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Joins continued lines; comments and blank lines are left out."""
    joined: str | None = None
    first = 0
    for number, raw in enumerate(_LINE_END.split(text), start=1):
        line = raw.lstrip(_BLANKS)
        if not joined and line[:1] in ("", "#", "!"):
            # Also after a line that held nothing but a backslash.
            joined = None
            continue
        if joined is None:
            joined, first = "", number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
        else:
            yield first, joined + line
            joined = None
    if joined:
        yield first, joined


def _split(line: str) -> tuple[str, str]:
    """Splits at the first separator that is not escaped."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return key, rest


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            out.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            digits = text[position : position + _UNICODE_DIGITS]
            if not re.fullmatch("[0-9A-Fa-f]{4}", digits, re.ASCII):
                raise PropertiesSyntaxError(line, r"\u must be followed by four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            position += _UNICODE_DIGITS
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return _join_surrogates("".join(out), line)


def _join_surrogates(text: str, line: int) -> str:
    r"""Java writes characters beyond U+FFFF as two `\u` escapes: joins the halves."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise PropertiesSyntaxError(line, r"a \u escape is half of a surrogate pair") from None


# -- sasl.jaas.config -----------------------------------------------------------------------------

_JAAS_TOKEN: Final = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/
    |(?P<word>[^\s"'=;]+)
    |"(?P<double>(?:[^"\\\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\n]|\\.)*)'
    |(?P<mark>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_JAAS_ESCAPE: Final = re.compile(
    r"\\(?:(?P<octal>[0-3][0-7]{0,2}|[4-7][0-7]?)|(?P<other>.))", re.DOTALL
)
_JAAS_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_JAAS_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """The login module of a `sasl.jaas.config`, which has exactly one."""

    login_module: str
    """Class name without its package."""
    options: dict[str, str]


def parse_jaas_config(text: str) -> JaasEntry:
    """Reads `Module required option="value" … ;`.

    Raises:
        ValueError: Not of that form; the text names the problem and quotes no value.
    """
    tokens = list(_jaas_tokens(text))
    words = [token for token, _ in tokens]
    if len(tokens) < 3 or words[1].lower() not in _JAAS_FLAGS:
        raise ValueError('it must begin with a login module and the word "required"')
    if tokens[-1] != (";", True):
        raise ValueError('it must end with ";"')
    options: dict[str, str] = {}
    body = tokens[2:-1]
    if (";", True) in body:
        raise ValueError("it must hold exactly one login module")
    for index in range(0, len(body), 3):
        part = body[index : index + 3]
        complete = len(part) == 3 and part[1] == ("=", True)
        if not complete or part[0][1] or part[2][1]:
            raise ValueError('its options must be written option="value"')
        options[part[0][0]] = part[2][0]
    return JaasEntry(words[0].rpartition(".")[2], options)


def _jaas_tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Yields (text, whether it is a mark)."""
    position = 0
    while position < len(text):
        match = _JAAS_TOKEN.match(text, position)
        if match is None:
            raise ValueError("it has a quote that is not closed")
        position = match.end()
        if match["mark"]:
            yield match["mark"], True
        elif match["word"] is not None:
            yield match["word"], False
        elif match["double"] is not None or match["single"] is not None:
            yield _JAAS_ESCAPE.sub(_jaas_unescape, match["double"] or match["single"] or ""), False


def _jaas_unescape(match: re.Match[str]) -> str:
    if match["octal"]:
        return chr(int(match["octal"], 8))
    return _JAAS_ESCAPES.get(match["other"], match["other"])
