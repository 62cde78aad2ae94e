"""Headers keep every byte; configurations and topics keep every character."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.dispatch.pauses import WHOLE_GROUP, Pause, PauseScope
from sharecoord.store.row_codec import (
    Headers,
    decode_group,
    decode_headers,
    decode_member,
    decode_pauses,
    encode_config,
    encode_headers,
    encode_pauses,
    member_values,
)
from tests.contract.store_worlds import member_of

texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = texts | st.binary(max_size=4).map(lambda b: b.decode(errors="surrogateescape"))
values = st.none() | st.binary(max_size=20) | st.text(max_size=5).map(lambda s: repr(s).encode())


@given(st.lists(st.tuples(names, values), max_size=5).map(tuple))
def test_headers_come_back_byte_for_byte(headers: Headers) -> None:
    text = encode_headers(headers)
    text.encode("utf-8")
    assert decode_headers(text) == headers


def test_text_headers_are_readable_and_others_are_marked() -> None:
    headers = (("a", b'{"base64":"x"}'), ("a", b"\xc3\x28"), ("b", None), ("c", "é".encode()))
    assert json.loads(encode_headers(headers)) == [
        ["a", '{"base64":"x"}'],
        ["a", {"base64": "wyg="}],
        ["b", None],
        ["c", "é"],
    ]
    assert "é" in encode_headers(headers)


def test_a_name_that_is_not_utf_8_is_marked_as_a_value_is() -> None:
    assert json.loads(encode_headers((("\udcff", b"1"),))) == [[{"base64": "/w=="}, "1"]]


@given(st.dictionaries(names, names, max_size=4))
def test_configurations_come_back(config: dict[str, str]) -> None:
    assert decode_group(("g", encode_config(config), 1, "[]", "")).config == config
    assert list(json.loads(encode_config(config))) == sorted(config)


def test_pauses_come_back_and_can_be_read_by_people() -> None:
    pauses = (
        Pause(WHOLE_GROUP, 1, "operator", "größer"),
        Pause(PauseScope("orders", 0), 2, "flood breaker"),
        Pause(PauseScope(member_id="m"), 3, "operator", ""),
    )
    text = encode_pauses(pauses)
    assert decode_pauses(text) == pauses
    assert text.startswith('[{"since_ms":1,"by":"operator","reason":"größer"},{"topic":"orders",')


def test_members_come_back() -> None:
    member = member_of("m", epoch=2**63 - 1)
    assert decode_member(member_values(member)) == member
