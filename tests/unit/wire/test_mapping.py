"""Messages become values, and values messages, by their descriptors alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import pytest

from sharecoord.errors import InvalidRequestError
from sharecoord.wire import Mapper
from sharecoord.wire import admin_service_pb2 as pb
from sharecoord.wire import share_types_pb2 as types

MAPPER = Mapper(lambda reason, message: reason and InvalidRequestError(message))


class Action(Enum):
    SKIP = "skip"
    FINISH = "finish"


class Kind(Enum):
    EARLIEST = "to_earliest"
    OFFSET = "to_offset"
    OFFSETS = "to_offsets"


class Place(NamedTuple):
    topic: str
    partition: int
    topic_id: str = ""


@dataclass(frozen=True)
class To:
    kind: Kind
    value: int = 0
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Reset:
    group_id: str
    to: To
    topics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Forced:
    partition: Place
    action: Action


@dataclass(frozen=True)
class Result:
    topic: str
    partition: int
    topic_id: str = ""
    new_offset: int = 0
    old_offset: int | None = None
    error: Any = None


def test_a_nested_message_is_a_nested_value_and_an_enum_is_read_by_its_name() -> None:
    place = types.TopicPartition(topic="orders", partition=3, topic_id=b"\x01" * 16)
    request = pb.ForceRecordsRequest(partition=place, action=pb.FORCE_ACTION_FINISH)
    assert MAPPER.read(Forced, request) == Forced(Place("orders", 3, "01" * 16), Action.FINISH)


@pytest.mark.parametrize(
    ("request_fields", "to"),
    [
        ({"to_earliest": True}, To(Kind.EARLIEST)),
        ({"to_offset": 0}, To(Kind.OFFSET, 0)),
        (
            {"to_offsets": {"offsets": [pb.PartitionOffset(topic="t", partition=1, offset=7)]}},
            To(Kind.OFFSETS, offsets={("t", 1): 7}),
        ),
    ],
)
def test_a_oneof_is_the_member_that_is_set(request_fields: dict[str, Any], to: To) -> None:
    assert MAPPER.read(Reset, pb.ResetOffsetsRequest(group_id="g", **request_fields)).to == to


@pytest.mark.parametrize(
    ("kind", "request_", "text"),
    [
        (Forced, pb.ForceRecordsRequest(), "^action is not set; give one of SKIP, FINISH$"),
        (Reset, pb.ResetOffsetsRequest(), "^to is not set; give one of to_earliest, to_latest, "),
        (Reset, pb.ResetOffsetsRequest(to_latest=False), "^to is not set"),
        (
            Reset,
            pb.ResetOffsetsRequest(to_offset=1, topics=[pb.OffsetTarget(topic="a")] * 2),
            "^topics: 'a' stands there twice$",
        ),
    ],
)
def test_what_is_missing_or_there_twice_is_named(kind: Any, request_: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MAPPER.read(kind, request_)


def test_a_value_is_read_from_what_it_was_made_of_with_its_error() -> None:
    given = Result("orders", 2, "ab" * 16, 5, None)
    message = MAPPER.answer(pb.ResetPartition, given)
    assert message.partition.topic == "orders"
    assert not message.HasField("old_offset")
    assert MAPPER.read(Result, message).topic_id == "ab" * 16
    failed = Result("orders", 2, error=InvalidRequestError("why"))
    found = MAPPER.read(Result, MAPPER.answer(pb.ResetPartition, failed))
    assert (found.error.reason, found.error.message) == ("INVALID_REQUEST", "why")


def test_a_mapping_is_repeated_messages_and_its_value_may_be_an_error() -> None:
    results = {"orders": None, "bills": InvalidRequestError("why")}
    message = MAPPER.answer(pb.DeleteOffsetsResponse, results)
    assert [(t.topic, t.error_message) for t in message.topics] == [
        ("orders", ""),
        ("bills", "why"),
    ]
    parts = MAPPER.make(pb.DeadLettersResult, parts={("t", 1): 7}).parts
    assert [(part.topic, part.partition, part.letters) for part in parts] == [("t", 1, 7)]


def test_an_answer_without_fields_says_nothing() -> None:
    assert MAPPER.answer(pb.BlockKeysResponse, None) == pb.BlockKeysResponse()
