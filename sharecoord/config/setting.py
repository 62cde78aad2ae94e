"""The settings table, after Kafka's ConfigDef: each setting is described once, at its field.

A configuration is a frozen dataclass whose fields are made by `int_setting`, `duration_setting`
and so on: the field's annotation is the type that the code sees, its description carries name,
meaning, unit, default and bounds, and everything else (parsing, errors, `config show`, the
documentation) reads that description through `settings_of` and `SettingsTable`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Final, TypeVar, cast

from sharecoord.config import values
from sharecoord.errors import InvalidConfigError

MASK: Final = "********"
_METADATA_KEY: Final = "setting"
_EnumT = TypeVar("_EnumT", bound=StrEnum)
_T = TypeVar("_T")


class Kind(StrEnum):
    """What a setting's text means; the value is the word used in the documentation."""

    INT = "integer"
    FLOAT = "number"
    BOOL = "boolean"
    STR = "text"
    CHOICE = "choice"
    DURATION = "duration"
    SIZE = "size"
    LIST = "list"
    CUSTOM = "special"


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive limits of a value; None = no limit on that side."""

    minimum: float | None = None
    maximum: float | None = None

    def contain(self, number: float) -> bool:
        """Whether the number lies within the limits."""
        above = self.minimum is None or number >= self.minimum
        return above and (self.maximum is None or number <= self.maximum)

    def text(self, unit: str = "", show: Callable[[Any], str] = str) -> str:
        """The limits in words, as the end of "it must be …"; empty without limits."""
        unit = f" {unit}" if unit else ""
        if self.minimum is not None and self.maximum is not None:
            return f"between {show(self.minimum)} and {show(self.maximum)}{unit}"
        if self.minimum is not None:
            return f"at least {show(self.minimum)}{unit}"
        return f"at most {show(self.maximum)}{unit}" if self.maximum is not None else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: Full dotted name, as written in files and by the admin commands.
        meaning: What it does, for a user; one or more full sentences.
        kind: How its text is read.
        default: The value in force when nobody set it.
        bounds: Inclusive limits, in `unit`.
        unit: `ms`, `bytes`, `records`, …; empty where there is none.
        choices: The allowed words of a `CHOICE`.
        parser: Reads a `CHOICE`, a `CUSTOM` or an item check of a `STR`; raises ValueError whose
            text ends the sentence "it must be …".
        renderer: Writes the value back as text; None = by kind.
        secret: The value is never shown, not even in errors.
        masker: Shows the text of a value that has a secret part (a URL with a password).
    """

    name: str
    meaning: str
    kind: Kind
    default: Any
    bounds: Bounds = Bounds()
    unit: str = ""
    choices: tuple[str, ...] = ()
    parser: Callable[[str], Any] | None = None
    renderer: Callable[[Any], str] | None = None
    secret: bool = False
    masker: Callable[[str], str] | None = None

    def parse(self, text: str, *, where: str = "") -> Any:
        """Reads the setting's text.

        Args:
            text: As written by the user.
            where: Place of the text (`file.yaml:3`), put in front of an error.

        Returns:
            The typed value: int (also ms and bytes), float, bool, str, an enum member, a tuple of
            str, or what `parser` makes.

        Raises:
            InvalidConfigError: Malformed or out of bounds; names key, value, bounds and fix.
        """
        try:
            value = self._read(text)
        except ValueError as error:
            raise self.invalid(text, f"it must be {error}", where=where) from None
        if self.kind in _BOUNDED and not self.bounds.contain(value):
            raise self.invalid(text, f"it must be {self.bounds_text()}", where=where)
        return value

    def coerce(self, raw: object, *, where: str = "") -> Any:
        """Reads a value that is a text or already has a type (from a flag, from a test).

        Raises:
            InvalidConfigError: As `parse`, or a type that the setting cannot have.
        """
        if isinstance(raw, (list, tuple)):
            if self.kind is not Kind.LIST or not all(isinstance(item, str) for item in raw):
                raise self.invalid(str(raw), f"it must be {self.expected()}", where=where)
            return tuple(raw)
        if isinstance(raw, bool):
            return self.parse("true" if raw else "false", where=where)
        if isinstance(raw, (str, int, float)):
            return self.parse(str(raw), where=where)
        raise self.invalid(str(raw), f"it must be {self.expected()}", where=where)

    def render(self, value: Any) -> str:
        """The value as a text that `parse` reads back to the same value."""
        if self.renderer is not None:
            return self.renderer(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def show(self, text: str) -> str:
        """The text as it may be shown: secrets are masked."""
        if self.secret:
            return MASK if text else text
        return self.masker(text) if self.masker else text

    def bounds_text(self) -> str:
        """The limits in words and in friendly units; empty without limits."""
        if self.kind is Kind.DURATION:
            return self.bounds.text(show=values.format_duration)
        if self.kind is Kind.SIZE:
            return self.bounds.text(show=values.format_size)
        return self.bounds.text(self.unit)

    def expected(self) -> str:
        """What the setting takes, in words, as the end of "it must be …"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        bounds = self.bounds_text()
        return f"a value of kind {self.kind}" + (f", {bounds}" if bounds else "")

    def invalid(self, text: str, problem: str, *, where: str = "") -> InvalidConfigError:
        """The error for a text of this setting; secrets are masked.

        A problem found in a text of which nothing may be shown does not quote it either.
        """
        shown = MASK if self.secret or (self.masker and self.masker(text) != text) else text
        return invalid_config(
            self.name, shown, problem, fix=f"The default is {self.default_text()}", where=where
        )

    def default_text(self) -> str:
        """The default in friendly units, in quotes when it is empty."""
        if self.kind is Kind.DURATION:
            return values.format_duration(self.default)
        if self.kind is Kind.SIZE:
            return values.format_size(self.default)
        return self.render(self.default) or '""'

    def _read(self, text: str) -> Any:
        if self.kind is Kind.LIST:
            return tuple(item.strip() for item in text.split(",") if item.strip())
        if self.parser is not None:
            return self.parser(text.strip())
        return _PARSERS[self.kind](text)


_BOUNDED: Final = frozenset({Kind.INT, Kind.FLOAT, Kind.DURATION, Kind.SIZE})
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
    """Builds the one sentence of every bad value: place, key, value, problem, fix.

    Args:
        key: The setting.
        shown: Its value.
        problem: What is wrong.
        fix: What to do.
        where: Which of several configurations.
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


class SettingsTable:
    """Settings by name, in the order of their description."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        """Builds the table.

        Raises:
            ValueError: Two settings have one name.
        """
        self._settings: dict[str, Setting] = {}
        for setting in settings:
            if setting.name in self._settings:
                raise ValueError(f"setting {setting.name} is described twice")
            self._settings[setting.name] = setting

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._settings.values())

    def __contains__(self, name: object) -> bool:
        return name in self._settings

    def __len__(self) -> int:
        return len(self._settings)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        return tuple(self._settings)

    def find(self, name: str, *, where: str = "") -> Setting:
        """The setting with this name.

        Raises:
            InvalidConfigError: There is none; names the nearest one.
        """
        setting = self._settings.get(name)
        if setting is None:
            raise unknown_name(name, self._settings, where=where)
        return setting


def settings_of(config_class: type) -> dict[str, Setting]:
    """The settings of a configuration dataclass by the name of their field, in order."""
    return {
        field.name: field.metadata[_METADATA_KEY]
        for field in dataclasses.fields(config_class)
        if _METADATA_KEY in field.metadata
    }


def _setting_field(setting: Setting) -> Any:
    return dataclasses.field(default=setting.default, metadata={_METADATA_KEY: setting})


def int_setting(
    name: str, meaning: str, *, default: int, bounds: tuple[int | None, int | None], unit: str = ""
) -> int:
    """A field that holds an integer."""
    setting = Setting(
        name=name,
        meaning=meaning,
        kind=Kind.INT,
        default=default,
        bounds=Bounds(*bounds),
        unit=unit,
    )
    return cast("int", _setting_field(setting))


def float_setting(
    name: str, meaning: str, *, default: float, bounds: tuple[float, float], unit: str = ""
) -> float:
    """A field that holds a number."""
    setting = Setting(
        name=name,
        meaning=meaning,
        kind=Kind.FLOAT,
        default=default,
        bounds=Bounds(*bounds),
        unit=unit,
    )
    return cast("float", _setting_field(setting))


def bool_setting(name: str, meaning: str, *, default: bool) -> bool:
    """A field that holds a boolean."""
    setting = Setting(name=name, meaning=meaning, kind=Kind.BOOL, default=default)
    return cast("bool", _setting_field(setting))


def str_setting(
    name: str,
    meaning: str,
    *,
    default: str = "",
    check: Callable[[str], str] | None = None,
    secret: bool = False,
) -> str:
    """A field that holds a text; empty = not set.

    Args:
        name: Name of the setting.
        meaning: Meaning for a user.
        default: Value when not set.
        check: Returns the text or raises ValueError with the end of "it must be …".
        secret: Never show the value.
    """
    setting = Setting(
        name=name, meaning=meaning, kind=Kind.STR, default=default, parser=check, secret=secret
    )
    return cast("str", _setting_field(setting))


def choice_setting(name: str, meaning: str, *, default: _EnumT) -> _EnumT:
    """A field that holds one word of an enum; case does not matter."""
    words = {member.value.lower(): member for member in type(default)}

    def read(text: str) -> _EnumT:
        member = words.get(text.lower())
        if member is None:
            raise ValueError("one of " + ", ".join(words))
        return member

    setting = Setting(
        name=name,
        meaning=meaning,
        kind=Kind.CHOICE,
        default=default,
        choices=tuple(words),
        parser=read,
        renderer=lambda member: str(member.value),
    )
    return cast("_EnumT", _setting_field(setting))


def duration_setting(
    name: str, meaning: str, *, default_ms: int, bounds_ms: tuple[int, int]
) -> int:
    """A field that holds milliseconds and accepts `30s` as well as `30000`."""
    setting = Setting(
        name=name,
        meaning=meaning,
        kind=Kind.DURATION,
        default=default_ms,
        bounds=Bounds(*bounds_ms),
        unit="ms",
    )
    return cast("int", _setting_field(setting))


def size_setting(
    name: str, meaning: str, *, default_bytes: int, bounds_bytes: tuple[int, int]
) -> int:
    """A field that holds bytes and accepts `512MiB` as well as `536870912`."""
    setting = Setting(
        name=name,
        meaning=meaning,
        kind=Kind.SIZE,
        default=default_bytes,
        bounds=Bounds(*bounds_bytes),
        unit="bytes",
    )
    return cast("int", _setting_field(setting))


def list_setting(name: str, meaning: str, *, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A field that holds texts; written as a YAML list or separated by commas."""
    setting = Setting(name=name, meaning=meaning, kind=Kind.LIST, default=default)
    return cast("tuple[str, ...]", _setting_field(setting))


def custom_setting(
    name: str,
    meaning: str,
    *,
    default: _T,
    parser: Callable[[str], _T],
    renderer: Callable[[_T], str],
    masker: Callable[[str], str] | None = None,
) -> _T:
    """A field with a type of its own.

    Args:
        name: Name of the setting.
        meaning: Meaning for a user.
        default: Value when not set.
        parser: Text to value; raises ValueError with the end of "it must be …".
        renderer: Value to the text that `parser` reads.
        masker: Text as it may be shown.
    """
    setting = Setting(
        name=name,
        meaning=meaning,
        kind=Kind.CUSTOM,
        default=default,
        parser=parser,
        renderer=cast("Callable[[Any], str]", renderer),
        masker=masker,
    )
    return cast("_T", _setting_field(setting))
