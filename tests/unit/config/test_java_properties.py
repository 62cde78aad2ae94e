"""Java's properties format and sasl.jaas.config."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.config.java_properties import (
    PropertiesSyntaxError,
    parse_jaas_config,
    parse_java_properties,
    parse_plain_properties,
)

_TEXT = st.text(max_size=40)


def _escape(text: str, *, is_key: bool) -> str:
    """Writes a text as Java's `Properties.store` does."""
    out = []
    for index, character in enumerate(text):
        if character == " " and (is_key or index == 0):
            out.append("\\ ")
        elif character in "\\=:#!":
            out.append("\\" + character)
        elif character in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[character])
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be")
            out.extend(f"\\u{units[i]:02X}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    return "".join(out)


@given(st.lists(st.tuples(_TEXT.filter(bool), _TEXT), max_size=5), st.sampled_from("=: "))
def test_what_java_writes_reads_back(entries: list[tuple[str, str]], separator: str) -> None:
    lines = [
        f"{_escape(key, is_key=True)}{separator}{_escape(value, is_key=False)}"
        for key, value in entries
    ]
    parsed = parse_java_properties("\n".join(lines))
    assert [(entry.key, entry.value) for entry in parsed] == entries


@given(_TEXT)
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_java_properties, parse_plain_properties):
        try:
            lines = [entry.line for entry in parse(text)]
        except PropertiesSyntaxError as error:
            lines = [error.line]
        assert all(line >= 1 for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b", 1)]),
        ("a = b ", [("a", "b ", 1)]),
        ("a:b=c", [("a", "b=c", 1)]),
        ("a b c", [("a", "b c", 1)]),
        ("a   :   b", [("a", "b", 1)]),
        ("a==b", [("a", "=b", 1)]),
        ("a", [("a", "", 1)]),
        ("=b", [("", "b", 1)]),
        ("# c\n! d\n\n  \t# e\na=b", [("a", "b", 5)]),
        ("a=b\\\n   c\nd=e", [("a", "bc", 1), ("d", "e", 3)]),
        ("a=b\\\\\nc=d", [("a", "b\\", 1), ("c", "d", 2)]),
        ("a=b\\\n# no comment", [("a", "b# no comment", 1)]),
        ("a=b\\", [("a", "b", 1)]),
        ("\\\n# c\na=b", [("a", "b", 3)]),
        ("\\\n \na=b", [("a", "b", 3)]),
        ("a=b\r\nc=d\re=f", [("a", "b", 1), ("c", "d", 2), ("e", "f", 3)]),
        ("a\\=b\\ c=d", [("a=b c", "d", 1)]),
        ("a=\\q\\\"\\'", [("a", "q\"'", 1)]),
        ("a=\\u00e4\\ud83d\\ude00", [("a", "ä😀", 1)]),
    ],
)
def test_javas_rules(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert [tuple(entry) for entry in parse_java_properties(text)] == expected


@pytest.mark.parametrize("text", ["x=1\na=\\u12", "x=1\na=\\u12g4", "x=1\na=\\ud83d!"])
def test_a_broken_escape_names_its_line(text: str) -> None:
    with pytest.raises(PropertiesSyntaxError, match=r"\\u") as caught:
        parse_java_properties(text)
    assert caught.value.line == 2


def test_librdkafkas_rules() -> None:
    parsed = parse_plain_properties("# c\n a = b=c \\n \n\nd=\n")
    assert [tuple(entry) for entry in parsed] == [("a", "b=c \\n", 2), ("d", "", 4)]


@pytest.mark.parametrize("text", ["a", "a: b", "=b"])
def test_librdkafkas_lines_need_key_and_value(text: str) -> None:
    with pytest.raises(PropertiesSyntaxError, match="not key=value"):
        parse_plain_properties(text)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ('username="u" password="p"', {"username": "u", "password": "p"}),
        ("username=u password=12.5", {"username": "u", "password": "12.5"}),
        ("username='a b' password='\"'", {"username": "a b", "password": '"'}),
        (r'password="a\"b\\c;d=e"', {"password": 'a"b\\c;d=e'}),
        (r'password="\t\101\q"', {"password": "\tAq"}),
        ('a="" // comment\n b="x" /* more\n */', {"a": "", "b": "x"}),
        ("", {}),
    ],
)
def test_jaas_is_read(options: str, expected: dict[str, str]) -> None:
    entry = parse_jaas_config(f"org.apache.kafka.X required\n {options} ;")
    assert entry.login_module == "X"
    assert entry.options == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must begin"),
        ("X;", "must begin"),
        ('X username="secret";', "must begin"),
        ('X required username="secret"', 'must end with ";"'),
        ('X required username "secret";', "option="),
        ('X required username="secret" password;', "option="),
        ('X required "secret"=;', "option="),
        ('X required username="secret;', "quote"),
        ('X required a="secret"; Y required b="secret";', "exactly one"),
    ],
)
def test_bad_jaas_is_refused_without_its_values(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_jaas_config(text)
    assert "secret" not in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30))
def test_a_quoted_password_reads_back(password: str) -> None:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    entry = parse_jaas_config(f'X required password="{quoted}";')
    assert entry.options == {"password": password}
