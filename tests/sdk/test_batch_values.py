"""Handlers of batches with values: what their hints mean, and what is refused."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import fastavro
import pytest
from pydantic import BaseModel
from sharecoord_sdk import (
    AcknowledgeType,
    Message,
    Messages,
    Retry,
    Worker,
)
from sharecoord_sdk._proto.share_types_pb2 import Header
from sharecoord_sdk.contrib.avro import avro
from sharecoord_sdk.testing import make_messages, run_handler, run_handler_async

if TYPE_CHECKING:
    import sharecoord_sdk as checkers

CONF = {"bootstrap.servers": "localhost:7070", "group.id": "g"}


@dataclass
class Order:
    id: int


@dataclass
class Line:
    product: str


class Model(BaseModel):
    id: int


def orders(*ids: object) -> list[bytes | None]:
    """Values of orders; what is no number can not be read."""
    return [json.dumps({"id": each}).encode() for each in ids]


# -- what it is given ---------------------------------------------------------------------------


def takes_values(given: list[Order]) -> None:
    assert given == [Order(1), Order(2)]


async def takes_both(messages: list[Message], given: list[Order]) -> None:
    assert [each.offset() for each in messages] == [0, 1]
    assert given == [Order(1), Order(2)]


def takes_messages(messages: list[Message]) -> None:
    assert all(isinstance(each, Message) for each in messages)


def takes_bare(messages: list, given: list[Order]) -> None:  # type: ignore[type-arg]
    assert all(isinstance(each, Message) for each in messages)
    assert given == [Order(1), Order(2)]


def takes_bare_messages(messages: list) -> None:  # type: ignore[type-arg]
    assert all(isinstance(each, Message) for each in messages)


def takes_twins(messages: Messages) -> None:
    assert isinstance(messages, Messages)
    assert messages.values() == orders(1, 2)
    assert (messages.keys(), messages.offsets()) == ([None, None], [0, 1])


async def takes_twins_and_values(messages: Messages[bytes, bytes], given: list[Order]) -> None:
    assert (messages.offsets(), given) == ([0, 1], [Order(1), Order(2)])


async def takes_twins_of_checkers(messages: checkers.Messages) -> None:
    assert messages.values() == orders(1, 2)


def takes_one_or_many(given: Message | list[Message]) -> None:
    assert not isinstance(given, Message)


def only_for_checkers(messages: list[checkers.Message], given: list[Order]) -> None:
    assert given == [Order(1), Order(2)]


def quoted(given: list["Order"]) -> None:  # noqa: UP037 - as code without future annotations has it
    assert given == [Order(1), Order(2)]


def takes_sequence(given: Sequence[Order], dry: bool = False) -> None:
    assert list(given) == [Order(1), Order(2)]


def takes_annotated(given: Annotated[list[Order], "all of them"]) -> None:
    assert given == [Order(1), Order(2)]


def takes_models(given: list[Model]) -> None:
    assert given == [Model(id=1), Model(id=2)]


def takes_objects(given: list[dict[str, int]]) -> None:
    assert given == [{"id": 1}, {"id": 2}]


def takes_text(given: list[str]) -> None:
    assert given == ['{"id": 1}', '{"id": 2}']


class Service:
    def store(self, given: list[Order]) -> None:
        assert given == [Order(1), Order(2)]

    async def __call__(self, messages: list[Message], given: list[Order]) -> None:
        assert (len(messages), given) == (2, [Order(1), Order(2)])


@pytest.mark.parametrize(
    ("handler", "takes"),
    [
        (takes_values, "values Order"),
        (takes_both, "messages, values Order"),
        (takes_messages, "messages"),
        (takes_bare, "messages, values Order"),
        (takes_bare_messages, "messages"),
        (takes_twins, "messages"),
        (takes_twins_and_values, "messages, values Order"),
        (takes_twins_of_checkers, "messages"),
        (takes_one_or_many, "messages"),
        (only_for_checkers, "messages, values Order"),
        (quoted, "values Order"),
        (takes_sequence, "values Order"),
        (takes_annotated, "values Order"),
        (takes_models, "values Model"),
        (takes_objects, "values dict[str, int]"),
        (takes_text, "values str"),
        (Service().store, "values Order"),
        (Service(), "messages, values Order"),
        (functools.partial(takes_sequence, dry=True), "values Order"),
        (lambda messages: takes_messages(messages), "messages"),
        (lambda *given: takes_messages(*given), "messages"),
    ],
)
def test_lists_are_filled_by_their_hints(handler: Callable[..., Any], takes: str) -> None:
    outcome = run_handler(handler, make_messages(orders(1, 2)))
    assert (outcome.error, outcome.type) == (None, AcknowledgeType.ACCEPT)
    worker = Worker(CONF)
    worker.handler("t", batch=5)(handler)
    (told,) = worker.describe()["handlers"]
    assert (told["takes"], told["batch"]) == (takes, 5)


@pytest.mark.parametrize(
    ("handler", "value", "expected"),
    [
        (lambda given: given, Order, [Order(1), Order(2)]),
        (lambda *given: given[0], Order, [Order(1), Order(2)]),
        (lambda messages, given: given, json.loads, [{"id": 1}, {"id": 2}]),
        (lambda given: given, len, [9, 9]),
    ],
)
def test_what_one_value_is_can_be_said(
    handler: Callable[..., Any], value: Any, expected: list[Any]
) -> None:
    seen: list[Any] = []
    parameters = handler.__code__.co_argcount

    def both(messages: Any, given: Any) -> None:
        seen.append(handler(messages, given))

    def one(*given: Any) -> None:
        seen.append(handler(*given))

    outcome = run_handler(
        both if parameters == 2 else one, make_messages(orders(1, 2)), value=value
    )
    assert (outcome.error, seen) == (None, [expected])


SCHEMA = {"type": "record", "name": "Payment", "fields": [{"name": "id", "type": "int"}]}


@avro(SCHEMA)
@dataclass
class Payment:
    id: int


def test_avro_and_protobuf() -> None:
    seen: list[Any] = []

    def payments(given: list[Payment]) -> None:
        seen.extend(given)

    def headers(given: list[Header]) -> None:
        seen.extend(given)

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), {"id": 7})
    assert run_handler(payments, make_messages([stream.getvalue()] * 2)).error is None
    header = Header(key="k", value=b"v")
    assert run_handler(headers, make_messages([header.SerializeToString()])).error is None
    assert seen == [Payment(7), Payment(7), header]


def test_tombstones_are_none_where_the_hint_says_so() -> None:
    seen: list[Any] = []

    def with_nulls(given: list[Order | None]) -> None:
        seen.append(given)

    def without(messages: list[Message], given: list[Order]) -> None:
        seen.append(given)

    batch = make_messages([*orders(1), None, *orders(3)])
    assert run_handler(with_nulls, batch).type is AcknowledgeType.ACCEPT
    outcome = run_handler(without, batch)
    assert seen == [[Order(1), None, Order(3)], [Order(1), Order(3)]]
    assert (outcome.type, outcome.reason) == (
        AcknowledgeType.REJECT,
        "bad value: the value is null; `Order | None` takes nulls",
    )


def takes_no_list(order: Order) -> None:
    """One order."""


def one_message(message: Message) -> None:
    """One message."""


def takes_mapping(given: dict[str, Order]) -> None:
    """No list."""


def two_kinds(given: list[Order], lines: list[Line]) -> None:
    """Values of two types."""


def values_first(given: list[Order], messages: list[Message]) -> None:
    """The other way round."""


def three(messages: list[Message], given: list[Order], more: list[Line]) -> None:
    """Takes too much."""


def one_and_list(message: Message, given: list[Order]) -> None:
    """A single message."""


def two_unknown(messages: list[Message], given: list) -> None:  # type: ignore[type-arg]
    """Does not say what the values are."""


def unreadable(given: list[complex]) -> None:
    """A type that nothing reads."""


def undefined(given: list[NoSuchType]) -> None:  # type: ignore[name-defined]  # noqa: F821
    """A hint that does not exist."""


@pytest.mark.parametrize(
    ("handler", "value", "text"),
    [
        (takes_no_list, None, r"'order': a handler of batches takes lists; write list\[Order\], n"),
        (
            takes_no_list,
            Order,
            r"'order': a handler of batches takes lists; write list\[Order\], n",
        ),
        (one_message, None, r"'message': .* takes lists; write list\[Message\], not Message"),
        (takes_mapping, None, r"'given': .* takes lists; write list\[dict\[str, .*Order\]\], not"),
        (two_kinds, None, r"'given' must be the messages \(list\[Message\]\), the values come sec"),
        (values_first, None, r"'given' must be the messages \(list\[Message\]\), the values come"),
        (
            three,
            None,
            "nobody fills parameter 'more'; a handler of batches takes the messages, the",
        ),
        (one_and_list, None, r"'message': .* takes lists; write list\[Message\], not Message"),
        (two_unknown, None, "nobody fills parameter 'given'; say with a type hint or value="),
        (unreadable, None, "'given': nothing reads complex; use lists of Message, bytes, str"),
        (undefined, None, "'given': the hint 'NoSuchType' is unknown: NameError"),
        (takes_messages, Order, "value= is given, and nothing takes the value"),
        (takes_values, 7, "'given': 7 is neither a type nor callable"),
        (takes_values, list[Order], r"value= says what the value of one record is; give value=Or"),
    ],
)
def test_wiring_that_can_not_work_names_handler_and_fix(
    handler: Callable[..., Any], value: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text) as caught:
        Worker(CONF).handler("t", batch=2, value=value)(handler)
    assert f"handler {handler.__qualname__}" in str(caught.value)


# -- tests of handlers --------------------------------------------------------------------------


async def test_tests_of_handlers_are_told_the_first_outcome_that_is_no_accept() -> None:
    async def handle(given: list[Order]) -> Any:
        return [None, Retry(2)] if given[0].id == 0 else None

    async def nonsense(given: list[Order]) -> Any:
        return [None]

    accepted = await run_handler_async(handle, make_messages(orders(1, 2)))
    assert accepted.type is AcknowledgeType.ACCEPT
    retried = await run_handler_async(handle, make_messages(orders(0, 1)))
    assert (retried.type, retried.delay_ms) == (AcknowledgeType.RELEASE, 2000)
    rejected = await run_handler_async(handle, make_messages(orders("a", 0, 1)))
    assert rejected.reason == "bad value: id: must be an integer, not str 'a'"
    wrong = await run_handler_async(nonsense, make_messages(orders(0, 1)))
    assert (wrong.type, wrong.reason) == (
        AcknowledgeType.RELEASE,
        "ValueError: it returned 1 outcomes for 2 messages",
    )
