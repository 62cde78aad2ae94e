"""Java's `.properties` format and the value of `sasl.jaas.config`, read as Java reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_BLANKS: Final = " \t\f"
# The key ends at the first separator that is not escaped.
_PAIR: Final = re.compile(r"((?:\\.?|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(
    r"\\(?:u(?P<digits>[0-9A-Fa-f]{4})|(?P<broken>u)|(?P<other>.?))", re.DOTALL
)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


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

    def __repr__(self) -> str:
        """Without the value, which may be a password."""
        return f"Property({self.key!r}, line {self.line})"


def parse_java_properties(text: str) -> list[Property]:
    r"""Reads Java's format: `key=value`, `key: value`, `key value`, `\` escapes, continuations.

    Returns:
        Entries of the whole file in order, duplicates included.

    Raises:
        PropertiesSyntaxError: A malformed `\uXXXX`.
    """
    properties = []
    for number, line in _logical_lines(text):
        match = _PAIR.fullmatch(line)
        assert match is not None, "every text matches"
        key, value = (_unescape(part, number) for part in match.groups())
        properties.append(Property(key, value, number))
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


def _unescape(text: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        if match["broken"]:
            raise PropertiesSyntaxError(line, r"\u must be followed by four hexadecimal digits")
        if match["digits"]:
            return chr(int(match["digits"], 16))
        return _ESCAPES.get(match["other"], match["other"])

    return _join_surrogates(_ESCAPE.sub(character, text), line)


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
    options: dict[str, str] = field(repr=False)


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
