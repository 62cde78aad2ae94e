"""Texts to values and back: integers, numbers, durations, sizes, ISO-8601 durations.

Every `parse_*` raises ValueError whose text says what was expected, as the end of the sentence
"it must be …"; `sharecoord.config.setting` adds the name of the setting and the fix. Every
`format_*` gives a text that the parser reads back to the same value.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final
from urllib.parse import unquote

from sharecoord.config.references import is_reference

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)", re.ASCII)
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])", re.ASCII)
_ISO_DURATION: Final = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<days>[+-]?[0-9]+)D)?"
    r"(?P<time>T(?:(?P<hours>[+-]?[0-9]+)H)?(?:(?P<minutes>[+-]?[0-9]+)M)?"
    r"(?:(?P<seconds>[+-]?[0-9]+(?:[.,][0-9]{0,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)

# A reference in the place of a password may be shown.
_URL_PASSWORD: Final = re.compile(
    r"(?<=://)(?P<user>[^/?#]*?):(?P<password>(?:\$\{[^}]*\}|[^/?#])*)@", re.ASCII
)
_URL_QUERY_PAIR: Final = re.compile(r"(?P<name>(?<=[?&])[^=&#]*)=(?P<value>[^&#]*)")
_SECRET_NAME: Final = re.compile("pass|secret|token", re.IGNORECASE)

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)

_MS_PER_UNIT: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

# Longest step first: `format_size` takes the first one that divides the size.
_BINARY_STEPS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DECIMAL_STEPS: Final = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_BYTES_PER_UNIT: Final = {
    "b": 1,
    **{unit.lower(): step for unit, step in _BINARY_STEPS + _DECIMAL_STEPS},
    # The spelling of Kubernetes; unlike a bare "M" it can only mean powers of 1024.
    **{unit[:2].lower(): step for unit, step in _BINARY_STEPS},
}

# Longer digit strings are mistakes, and Python refuses to convert the longest of them.
_MAX_DIGITS: Final = 30


def is_topic_name(text: str) -> bool:
    """Whether Kafka takes a topic of this name."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in (".", "..")


def parse_bool(text: str) -> bool:
    """Reads `true` or `false` in any case, as Kafka does; `yes` and `1` are refused."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def parse_int(text: str) -> int:
    """Reads a decimal integer without separators."""
    word = text.strip()
    if not _INTEGER.fullmatch(word) or len(word) > _MAX_DIGITS:
        raise ValueError("an integer")
    return int(word)


def parse_float(text: str) -> float:
    """Reads a finite decimal number; `nan` and `inf` are refused."""
    word = text.strip()
    value = float(word) if _NUMBER.fullmatch(word) else math.inf
    if not math.isfinite(value):
        raise ValueError("a number")
    return value


def parse_duration_ms(text: str) -> int:
    """Reads `30s`, `1.5s`, `5m`, `1h30m`, `7d`, `250ms`, or an integer of milliseconds.

    A duration with a unit is not negative and has no fraction of a millisecond.
    """
    expected = ValueError("a duration such as 500ms, 30s, 5m, 1h30m or 7d, or whole milliseconds")
    word = text.strip()
    if len(word) > _MAX_DIGITS:
        raise expected
    if _INTEGER.fullmatch(word):
        return int(word)
    total = Decimal(0)
    position, previous_ms = 0, _MS_PER_UNIT["d"] + 1
    while match := _DURATION_PART.match(word, position):
        unit_ms = _MS_PER_UNIT[match[2]]
        if unit_ms >= previous_ms:
            raise expected
        total += Decimal(match[1]) * unit_ms
        position, previous_ms = match.end(), unit_ms
    if position == 0 or position != len(word) or total != int(total):
        raise expected
    return int(total)


def format_duration(duration_ms: int) -> str:
    """The shortest exact text with one unit: `30s`, `90m`, `1500ms`, `0ms`."""
    for unit, unit_ms in _MS_PER_UNIT.items():
        if duration_ms and duration_ms % unit_ms == 0:
            return f"{duration_ms // unit_ms}{unit}"
    return f"{duration_ms}ms"


def parse_size_bytes(text: str) -> int:
    """Reads `512MiB`, `1.5GiB`, `64kB`, `512Mi`, `100B`, or an integer of bytes.

    `512M` is refused because it can mean two things.
    """
    word = text.strip()
    if _INTEGER.fullmatch(word) and len(word) <= _MAX_DIGITS:
        return int(word)
    match = _QUANTITY.fullmatch(word)
    if match and match[2].lower() in ("k", "m", "g", "t"):
        letter = match[2].upper()
        raise ValueError(f"{match[1]}{letter}iB (powers of 1024) or {match[1]}{letter}B (of 1000)")
    step = _BYTES_PER_UNIT.get(match[2].lower()) if match else None
    size = Decimal(match[1]) * step if match and step and len(word) <= _MAX_DIGITS else None
    if size is None or size != int(size):
        raise ValueError("a size such as 512MiB, 64kB or 1GiB, or whole bytes")
    return int(size)


def format_size(size_bytes: int) -> str:
    """The shortest exact text with one unit: `512MiB`, `64kB`, `1001B`."""
    for unit, step in _BINARY_STEPS + _DECIMAL_STEPS:
        if size_bytes and size_bytes % step == 0:
            return f"{size_bytes // step}{unit}"
    return f"{size_bytes}B"


def parse_iso_duration_ms(text: str) -> int:
    """Reads `PnDTnHnMn.nS` as Java's `Duration.parse` does, if it is not negative.

    Less than a millisecond is cut off.
    """
    expected = ValueError("an ISO-8601 duration PnDTnHnMn.nS that is not negative, such as PT1H")
    match = _ISO_DURATION.fullmatch(text.strip())
    # "P" and "PT" alone match the pattern and mean nothing.
    if not match or len(text) > 2 * _MAX_DIGITS or text.strip()[-1:].upper() in ("P", "T"):
        raise expected
    total_ms = Decimal(0)
    for group, unit in (("days", "d"), ("hours", "h"), ("minutes", "m"), ("seconds", "s")):
        total_ms += Decimal((match[group] or "0").replace(",", ".")) * _MS_PER_UNIT[unit]
    if match["sign"] == "-":
        total_ms = -total_ms
    if total_ms < 0:
        raise expected
    return int(total_ms)


def format_iso_duration(duration_ms: int) -> str:
    """Writes milliseconds as Java's `Duration` does, days apart: `P1D`, `PT1H30M`, `PT0.25S`."""
    days, rest_ms = divmod(duration_ms, _MS_PER_UNIT["d"])
    hours, rest_ms = divmod(rest_ms, _MS_PER_UNIT["h"])
    minutes, rest_ms = divmod(rest_ms, _MS_PER_UNIT["m"])
    seconds, millis = divmod(rest_ms, 1_000)
    time = f"{hours}H" if hours else ""
    time += f"{minutes}M" if minutes else ""
    if millis:
        time += f"{seconds}.{millis:03d}".rstrip("0") + "S"
    elif seconds or not (days or time):
        time += f"{seconds}S"
    return ("P" + (f"{days}D" if days else "")) + (f"T{time}" if time else "")


def mask_url(text: str) -> str:
    """The text with every password of a URL in it replaced by `***`, those behind `?` included."""
    masked = _URL_PASSWORD.sub(_masked_password, text)
    return _URL_QUERY_PAIR.sub(_masked_pair, masked)


def _masked_password(match: re.Match[str]) -> str:
    return match[0] if is_reference(match["password"]) else f"{match['user']}:***@"


def _masked_pair(match: re.Match[str]) -> str:
    shown = not _SECRET_NAME.search(unquote(match["name"])) or is_reference(match["value"])
    return match[0] if shown else f"{match['name']}=***"
