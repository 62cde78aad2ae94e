"""The settings table, after Kafka's ConfigDef: each setting is described once, at its field.

A configuration is a frozen dataclass whose fields are made by `int_setting`, `duration_setting`
and so on: the field's annotation is the type that the code sees, its description carries name,
meaning, unit, default and bounds, and everything else (parsing, errors, `config show`, the
documentation) reads that description through `settings_of` and `SettingsTable`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, TypeVar

from sharecoord.config import values
from sharecoord.config.references import is_reference
from sharecoord.errors import InvalidConfigError

MASK: Final = "********"
_METADATA_KEY: Final = "setting"
_EnumT = TypeVar("_EnumT", bound=StrEnum)
_T = TypeVar("_T")


class Kind(StrEnum):
    """How a setting's text is read; the value is the word used in the documentation."""

    INT = "integer"
    FLOAT = "number"
    BOOL = "boolean"
    STR = "text"
    CHOICE = "choice"
    DURATION = "duration"
    SIZE = "size"
    CUSTOM = "special"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a process or of a group.

    Attributes:
        name: Full dotted name, as written in files and by the admin commands.
        meaning: What it does, for a user; one or more full sentences.
        kind: How its text is read.
        default: The value in force when nobody set it.
        bounds: Inclusive limits, in `unit`; None = it has none.
        unit: `ms`, `bytes`, `records`, …; empty where there is none.
        choices: The allowed words of a `CHOICE`.
        parser: Reads a `CHOICE`, a `CUSTOM` or an item check of a `STR`; raises ValueError whose
            text ends the sentence "it must be …".
        renderer: Writes the value back as text; None = by kind.
        masker: Shows the text of a value that may have a secret part; errors do not quote such a
            value. None = only passwords of URLs are masked.
    """

    name: str
    meaning: str
    kind: Kind
    default: Any
    bounds: tuple[float, float] | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    parser: Callable[[str], Any] | None = None
    renderer: Callable[[Any], str] | None = None
    masker: Callable[[str], str] | None = None

    def parse(self, text: str, *, where: str = "", written: str | None = None) -> Any:
        """Reads the setting's text.

        Args:
            text: The value.
            where: Its place (`file.yaml:3`), named in errors.
            written: The value before references in it were resolved, which errors quote in place
                of `text`; None = there were none.

        Returns:
            The typed value: int (also ms and bytes), float, bool, str, or what `parser` makes.

        Raises:
            InvalidConfigError: Malformed or out of bounds; names key, value, bounds and fix.
        """
        shown = text if written is None else written
        try:
            value = self._read(text)
        except ValueError as error:
            # What the parser says of a content may quote it.
            problem = str(error) if written is None else self.expected()
            raise self.invalid(shown, f"it must be {problem}", where=where) from None
        if self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]:
            raise self.invalid(shown, f"it must be {self.bounds_text()}", where=where)
        return value

    def coerce(self, raw: object, *, where: str = "", written: str | None = None) -> Any:
        """Reads a value that is a text or already has a type; arguments as `parse`.

        Raises:
            InvalidConfigError: As `parse`, or a type that the setting cannot have.
        """
        if isinstance(raw, bool):
            return self.parse("true" if raw else "false", where=where)
        if isinstance(raw, (str, int, float)):
            return self.parse(str(raw), where=where, written=written)
        shown = str(raw) if written is None else written
        raise self.invalid(shown, f"it must be {self.expected()}", where=where)

    def render(self, value: Any) -> str:
        """The value as a text that `parse` reads back to the same value."""
        if self.renderer is not None:
            return self.renderer(value)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def show(self, text: str) -> str:
        """The text as it may be shown: secrets are masked."""
        return (self.masker or values.mask_url)(text)

    def bounds_text(self) -> str:
        """The limits in words and in friendly units; empty without limits."""
        if self.bounds is None:
            return ""
        least, most = map(_FORMATS.get(self.kind, str), self.bounds)
        unit = f" {self.unit}" if self.unit and self.kind not in _FORMATS else ""
        return f"between {least} and {most}{unit}"

    def expected(self) -> str:
        """The values that the setting takes, in words, as the end of "it must be …"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        bounds = self.bounds_text()
        return f"a value of kind {self.kind}" + (f", {bounds}" if bounds else "")

    def invalid(self, text: str, problem: str, *, where: str = "") -> InvalidConfigError:
        """The error for a text of this setting; secrets are masked.

        A text that may have a secret part is not shown at all: as it is not valid, nobody knows
        which part that is.
        """
        shown = MASK if self.masker and not is_reference(text) else self.show(text)
        return invalid_config(
            self.name, shown, problem, fix=f"The default is {self.default_text()}", where=where
        )

    def default_text(self) -> str:
        """The default in friendly units, in quotes when it is empty."""
        return _FORMATS.get(self.kind, self.render)(self.default) or '""'

    def _read(self, text: str) -> Any:
        if self.parser is not None:
            return self.parser(text.strip())
        return _PARSERS[self.kind](text)


_FORMATS: Final[dict[Kind, Callable[[Any], str]]] = {
    Kind.DURATION: values.format_duration,
    Kind.SIZE: values.format_size,
}
"""Values in friendly units, which stand in the text."""
_PARSERS: Final[dict[Kind, Callable[[str], Any]]] = {
    Kind.INT: values.parse_int,
    Kind.FLOAT: values.parse_float,
    Kind.BOOL: values.parse_bool,
    Kind.STR: str.strip,
    Kind.DURATION: values.parse_duration_ms,
    Kind.SIZE: values.parse_size_bytes,
}


def invalid_config(
    key: str, shown: str, problem: str, *, fix: str, where: str = "", against: str = ""
) -> InvalidConfigError:
    """The error for a bad value: one sentence with place, key, value, problem and fix.

    Args:
        key: The setting.
        shown: Its value, as it may be shown.
        problem: What is wrong, as "it must be …".
        fix: What to do, without a full stop.
        where: Place of the value; "" = it has none.
        against: The other setting that this one contradicts.
    """
    place = f"{where}: " if where else ""
    message = f'{place}{key}="{shown}" is not valid: {problem}. {fix}.'
    said = {"key": key, "value": shown} | ({"against": against} if against else {})
    return InvalidConfigError(message, metadata=said)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one, or None when nothing is near.

    Case and the difference between `_`, `-` and `.` do not count.
    """
    folded = {_fold(candidate): candidate for candidate in known}
    matches = difflib.get_close_matches(_fold(name), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def unknown_name(
    name: str, known: Iterable[str], *, what: str = "setting", where: str = ""
) -> InvalidConfigError:
    """The error for a name that nobody knows, with the nearest known one."""
    place = f"{where}: " if where else ""
    near = nearest(name, known)
    fix = f'Did you mean "{near}"?' if near else "docs/settings.md lists all of them."
    return InvalidConfigError(f'{place}unknown {what} "{name}". {fix}', metadata={"key": name})


def _fold(name: str) -> str:
    return name.lower().replace("_", ".").replace("-", ".")


class SettingsTable(dict[str, Setting]):
    """Settings by name, in the order of their description."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        super().__init__()
        for setting in settings:
            if setting.name in self:
                raise ValueError(f"setting {setting.name} is described twice")
            self[setting.name] = setting

    def find(self, name: str, *, where: str = "") -> Setting:
        """The setting with this name.

        Raises:
            InvalidConfigError: There is none; names the nearest one.
        """
        if name not in self:
            raise unknown_name(name, self, where=where)
        return self[name]


def settings_of(config_class: type) -> dict[str, Setting]:
    """The settings of a configuration dataclass by the name of their field, in order."""
    return {
        field.name: field.metadata[_METADATA_KEY]
        for field in dataclasses.fields(config_class)
        if _METADATA_KEY in field.metadata
    }


def _field(name: str, meaning: str, kind: Kind, default: _T, **more: Any) -> _T:
    """A dataclass field with its setting; typed as the value that the field holds."""
    setting = Setting(name=name, meaning=meaning, kind=kind, default=default, **more)
    return dataclasses.field(default=default, metadata={_METADATA_KEY: setting})


def int_setting(
    name: str, meaning: str, *, default: int, bounds: tuple[int, int], unit: str = ""
) -> int:
    """A field that holds an integer."""
    return _field(name, meaning, Kind.INT, default, bounds=bounds, unit=unit)


def float_setting(name: str, meaning: str, *, default: float, bounds: tuple[float, float]) -> float:
    """A field that holds a number."""
    return _field(name, meaning, Kind.FLOAT, default, bounds=bounds)


def bool_setting(name: str, meaning: str, *, default: bool) -> bool:
    """A field that holds a boolean."""
    return _field(name, meaning, Kind.BOOL, default)


def str_setting(
    name: str, meaning: str, *, default: str = "", check: Callable[[str], str] | None = None
) -> str:
    """A field that holds a text; empty = not set.

    `check` returns the text, or raises ValueError with the end of "it must be …".
    """
    return _field(name, meaning, Kind.STR, default, parser=check)


def choice_setting(name: str, meaning: str, *, default: _EnumT) -> _EnumT:
    """A field that holds one word of an enum; case does not matter."""
    words = {member.value.lower(): member for member in type(default)}

    def read(text: str) -> _EnumT:
        member = words.get(text.lower())
        if member is None:
            raise ValueError("one of " + ", ".join(words))
        return member

    more = {"choices": tuple(words), "parser": read, "renderer": lambda member: str(member.value)}
    return _field(name, meaning, Kind.CHOICE, default, **more)


def duration_setting(
    name: str, meaning: str, *, default_ms: int, bounds_ms: tuple[int, int]
) -> int:
    """A field that holds milliseconds and accepts `30s` as well as `30000`."""
    return _field(name, meaning, Kind.DURATION, default_ms, bounds=bounds_ms, unit="ms")


def size_setting(
    name: str, meaning: str, *, default_bytes: int, bounds_bytes: tuple[int, int]
) -> int:
    """A field that holds bytes and accepts `512MiB` as well as `536870912`."""
    return _field(name, meaning, Kind.SIZE, default_bytes, bounds=bounds_bytes, unit="bytes")


def custom_setting(
    name: str,
    meaning: str,
    *,
    default: _T,
    parser: Callable[[str], _T],
    renderer: Callable[[_T], str],
    masker: Callable[[str], str] | None = None,
) -> _T:
    """A field with a type of its own; see `Setting` for parser, renderer and masker."""
    more = {"parser": parser, "renderer": renderer, "masker": masker}
    return _field(name, meaning, Kind.CUSTOM, default, **more)
