"""Texts and arrays on their way to PostgreSQL; the URL's own settings stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.engine import make_url

from sharecoord.store.dialects.postgres import PostgresDialect
from sharecoord.store.dialects.postgres_text import ESCAPE, escape, unescape
from sharecoord.store.hot.server_statements import _blobs, _numbers, _texts

texts = st.text(st.sampled_from(["\0", ESCAPE, "0", "1", "a", "\\", '"', "é"]), max_size=8)


@given(texts)
def test_a_text_comes_back(text: str) -> None:
    assert unescape(escape(text)) == text
    assert "\0" not in escape(text)


@given(texts, texts)
def test_texts_stay_different(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


def test_usual_texts_are_stored_as_they_are() -> None:
    assert escape("später \U0001f600") == "später \U0001f600"


def test_arrays() -> None:
    assert _numbers([1, -2, 2**63]) == "{1,-2,9223372036854775808}"
    assert _texts(["a", None, 'q"b\\', "a", "NULL", ""]) == r'{"a",NULL,"q\"b\\","a","NULL",""}'
    assert _blobs([b"\x01\xff", None, b""]) == r'{"\\x01ff",NULL,"\\x"}'
    assert _numbers([]) == _texts([]) == _blobs([]) == "{}"


def test_what_the_url_says_wins() -> None:
    url = make_url(
        "postgresql+psycopg://u:secret@db/s?connect_timeout=9&application_name=mine"
        "&options=-c%20lock_timeout%3D7"
    )
    dialect = PostgresDialect(url, lock_timeout_ms=1234)
    arguments = dialect.connect_args()
    assert "connect_timeout" not in arguments
    assert "application_name" not in arguments
    assert arguments["keepalives"] == 1
    options = arguments["options"]
    assert options.index("lock_timeout=1234") < options.index("lock_timeout=7")
    assert "secret" not in dialect.where
