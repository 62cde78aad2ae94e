"""The settings table: parsing, errors, nearest names."""

# The fields are made by functions that return `dataclasses.field`: nothing mutable is shared.
# ruff: noqa: RUF009

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pytest

from sharecoord.config.setting import (
    Kind,
    Setting,
    SettingsTable,
    bool_setting,
    choice_setting,
    duration_setting,
    float_setting,
    int_setting,
    nearest,
    settings_of,
    size_setting,
    str_setting,
)
from sharecoord.errors import InvalidConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Example:
    count: int = int_setting("a.count", "How many.", default=3, bounds=(1, 10), unit="cats")
    ratio: float = float_setting("a.ratio", "Which part.", default=0.5, bounds=(0.0, 1.0))
    on: bool = bool_setting("a.on", "Whether.", default=True)
    colour: Colour = choice_setting("a.colour", "Which.", default=Colour.RED)
    wait_ms: int = duration_setting("a.wait.ms", "Wait.", default_ms=50, bounds_ms=(0, 60_000))
    room_bytes: int = size_setting("a.room", "Room.", default_bytes=1024, bounds_bytes=(1, 2048))
    name: str = str_setting("a.name", "Name.")


TABLE = SettingsTable(settings_of(Example).values())


def test_the_fields_have_the_defaults_of_their_settings() -> None:
    assert Example() == Example(3, 0.5, True, Colour.RED, 50, 1024, "")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.count", "10", 10),
        ("a.ratio", "1", 1.0),
        ("a.on", "FALSE", False),
        ("a.colour", "Blue", Colour.BLUE),
        ("a.wait.ms", "1m", 60_000),
        ("a.room", "2KiB", 2_048),
        ("a.name", " x ", "x"),
    ],
)
def test_texts_are_read(name: str, text: str, expected: object) -> None:
    value = TABLE.find(name).parse(text)
    assert value == expected
    assert TABLE.find(name).parse(TABLE.find(name).render(value)) == expected


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.count", "0", "between 1 and 10 cats. The default is 3."),
        ("a.count", "11", "between 1 and 10 cats"),
        ("a.count", "x", "an integer"),
        ("a.ratio", "1.01", "between 0.0 and 1.0"),
        ("a.on", "yes", "true or false"),
        ("a.colour", "green", "one of red, blue"),
        ("a.wait.ms", "61s", "between 0ms and 1m. The default is 50ms."),
        ("a.room", "3KiB", "between 1B and 2KiB. The default is 1KiB."),
    ],
)
def test_an_error_names_place_key_value_bounds_and_default(
    name: str, text: str, problem: str
) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        TABLE.find(name).parse(text, where="x.yaml:7")
    message = caught.value.message
    assert message.startswith(f'x.yaml:7: {name}="{text}" is not valid: it must be ')
    assert problem in message
    assert caught.value.metadata == {"key": name, "value": text}


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("a.count", 4, 4),
        ("a.ratio", 0.25, 0.25),
        ("a.on", False, False),
    ],
)
def test_typed_values_are_taken(name: str, raw: object, expected: object) -> None:
    assert TABLE.find(name).coerce(raw) == expected


@pytest.mark.parametrize(
    ("name", "raw"),
    [("a.count", True), ("a.count", 1.5), ("a.on", 1), ("a.count", [1]), ("a.name", ["x"]),
     ("a.count", None), ("a.count", {}), ("a.room", object())],
)  # fmt: skip
def test_values_of_a_wrong_type_are_refused(name: str, raw: object) -> None:
    with pytest.raises(InvalidConfigError, match=f"^{name}="):
        TABLE.find(name).coerce(raw)


def test_the_text_of_a_masked_setting_is_never_shown() -> None:
    setting = Setting(
        name="pin", meaning="", kind=Kind.INT, default=1, bounds=(1, 9), masker=lambda _: "*"
    )
    with pytest.raises(InvalidConfigError) as caught:
        setting.parse("4711")
    assert "4711" not in str(caught.value)
    assert "4711" not in str(caught.value.metadata)
    assert setting.show("4") == "*"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.cuont", "a.count"),
        ("a_wait_ms", "a.wait.ms"),
        ("A.COLOUR", "a.colour"),
        ("a.color", "a.colour"),
        ("zzzzzzzzzz", None),
    ],
)
def test_the_nearest_name_is_found(name: str, expected: str | None) -> None:
    assert nearest(name, TABLE) == expected


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(InvalidConfigError, match=r'unknown setting "a\.cuont".*"a\.count"\?'):
        TABLE.find("a.cuont")
    with pytest.raises(InvalidConfigError, match=r"docs/settings\.md"):
        TABLE.find("zzzzzzzzzz")


def test_a_name_is_described_once() -> None:
    settings = list(settings_of(Example).values())
    with pytest.raises(ValueError, match=r"a\.count is described twice"):
        SettingsTable([*settings, settings[0]])
    assert len(TABLE) == len(settings)
    assert "a.count" in TABLE
