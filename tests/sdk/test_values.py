"""Values as types: what hints mean, what is refused, and what a bad value becomes."""

from __future__ import annotations

import enum
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, LiteralString, Never, NewType, Optional
from uuid import UUID

import pytest
from google.protobuf.descriptor_pb2 import UninterpretedOption
from pydantic import BaseModel, Field
from sharecoord_sdk import (
    AcknowledgeType,
    Message,
    Reject,
    Retry,
    SerializationContext,
    Worker,
)
from sharecoord_sdk._proto.share_types_pb2 import Header
from sharecoord_sdk.testing import make_message, run_handler
from sharecoord_sdk.values import BadValueError, UnreadableTypeError, value_reader

from tests.sdk.fake_coordinator import Ack, make_batch
from tests.sdk.worker_running import Make, wait_covered

if TYPE_CHECKING:
    import sharecoord_sdk as checkers

CONF = {"bootstrap.servers": "localhost:7070", "group.id": "g"}
NamePart = UninterpretedOption.NamePart
Cents = NewType("Cents", int)


class Color(enum.Enum):
    RED = "red"
    ONE = 1


@dataclass
class Line:
    product: str
    price: float = 0.0


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    note: str | None = None
    color: Color = Color.RED


@dataclass
class Tree:
    left: Tree | None = None


@dataclass
class Refund:
    id: int
    amount: int


@dataclass
class Pair:
    left: Order | Refund | Pair


@dataclass(frozen=True)
class Place:
    shelf: int


@dataclass(frozen=True)
class Shelves:
    places: tuple[list[int], ...]


@dataclass
class Misspelt:
    at: "datetime.nothing"  # noqa: UP037 - as it stands in a module without the import


class Nothing(enum.Enum):
    pass


@dataclass
class Everything:
    day: date
    at: datetime
    uuid: UUID
    amount: Decimal
    pair: tuple[int, str]
    many: tuple[int, ...]
    tags: frozenset[str]
    by_name: dict[str, Line]
    kind: Literal["a", 2]
    cents: Cents
    noted: Annotated[int, "cents"]
    anything: Any
    nothing: None
    flag: bool


@dataclass
class Checked:
    id: int

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("id must not be negative")


class Model(BaseModel):
    id: int
    lines: list[int] = Field(default=[], max_length=2)


@dataclass
class WithModel:
    model: Model


def read(hint: Any, value: bytes | None) -> Any:
    return value_reader(hint)(make_message(value, topic="orders", headers=[("h", b"1")]))


# -- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "größe".encode(), "größe"),
        (dict, b'{"a": [1]}', {"a": [1]}),
        (list, b"[1, null]", [1, None]),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
        (list[float], b"[1, 2.5]", [1.0, 2.5]),
        (int | str, b'"x"', "x"),
        (Order, b'{"id": 7}', Order(7)),
        (
            Order,
            b'{"id": 7, "lines": [{"product": "x", "price": 2}], "note": "n", "color": 1}',
            Order(7, [Line("x", 2.0)], "n", Color.ONE),
        ),
        (Tree, b'{"left": {"left": null}}', Tree(Tree(None))),
        # A producer's new field.
        (Order, b'{"id": 7, "new": {"id": 8}}', Order(7)),
        (
            list[Order],
            b'[{"id": 7, "lines": [{"product": "x", "new": 1}]}]',
            [Order(7, [Line("x")])],
        ),
        (Order | None, b'{"id": 7, "new": 1}', Order(7)),
        (Model, b'{"id": 7, "new": 1}', Model(id=7)),
        # The one that has most of the fields comes first.
        (Order | Refund, b'{"id": 7, "amount": 2}', Refund(7, 2)),
        (Order | Refund, b'{"id": 7}', Order(7)),
        (Order | Refund, b'{"id": 7, "amount": 2, "new": 1}', Refund(7, 2)),
        (Order | Refund, b'{"id": 7, "note": "n", "new": 1}', Order(7, note="n")),
        (Annotated[Order, "x"] | Annotated[Refund, "x"], b'{"id": 7, "amount": 2}', Refund(7, 2)),
        (Order | dict, b'{"id": 7, "amount": 2}', {"id": 7, "amount": 2}),
        (Pair, b'{"left": {"id": 7, "amount": 2}}', Pair(Refund(7, 2))),
        (set[Place], b'[{"shelf": 1}, {"shelf": 1}]', {Place(1)}),
        (set, b"[1, 1]", {1}),
        (Cents, b"5", 5),
        (Model, b'{"id": 7}', Model(id=7)),
        (WithModel, b'{"model": {"id": 7}}', WithModel(Model(id=7))),
        (Header, Header(key="k", value=b"v").SerializeToString(), Header(key="k", value=b"v")),
        (Order | None, None, None),
        (Optional[Order], b'{"id": 7}', Order(7)),  # noqa: UP045 - also the old spelling
        (bytes | None, None, None),
    ],
)
def test_a_value_is_read_as_its_type_says(hint: Any, value: bytes | None, expected: Any) -> None:
    found = read(hint, value)
    assert (found, type(found)) == (expected, type(expected))


def test_every_type_of_a_field() -> None:
    value = {
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05+00:00",
        "uuid": "12345678-1234-5678-1234-567812345678",
        "amount": "1.10",
        "pair": [1, "x"],
        "many": [1, 2],
        "tags": ["a", "a"],
        "by_name": {"n": {"product": "p"}},
        "kind": 2,
        "cents": 5,
        "noted": 6,
        "anything": {"deep": []},
        "nothing": None,
        "flag": True,
    }
    assert read(Everything, json.dumps(value).encode()) == Everything(
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        UUID("12345678-1234-5678-1234-567812345678"),
        Decimal("1.10"),
        (1, "x"),
        (1, 2),
        frozenset({"a"}),
        {"n": Line("p")},
        2,
        Cents(5),
        6,
        {"deep": []},
        None,
        True,
    )


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (bytes, None, "the value is null; `bytes | None` takes nulls"),
        (str, b"\xff", "is no UTF-8"),
        (dict, b"[]", "must be an object, not list []"),
        (list, b"{}", "must be a list, not dict {}"),
        (dict, b"{", "is no JSON: Expecting property name"),
        (dict, b'{"a": NaN}', "is no JSON: NaN is no number of JSON"),
        (list, b"[" * 100_000, "is no JSON that can be read: nested too deep"),
        (Order, b"\xff\xfe", "is no JSON"),
        (Order, b"{}", "id: is missing"),
        (Order, b'{"id": "7"}', "id: must be an integer, not str '7'"),
        (Order, b'{"id": true}', "id: must be an integer, not bool True"),
        (Order, b'{"id": 7.0}', "id: must be an integer, not float 7.0"),
        (Order, b'{"id": null}', "id: must be an integer, not null"),
        (Order, b'{"id": 7, "note": 1}', "note: must be str or null, not int 1"),
        (Order, b'{"id": 7, "color": true}', "color: must be one of 'red', 1, not bool True"),
        (
            Order,
            b'{"id": 7, "lines": [{"product": "x"}, {"product": 2}]}',
            "lines[1].product: must be text, not int 2",
        ),
        (Line, b'{"product": "", "price": "1"}', "price: must be a number, not str '1'"),
        (Line, b'{"product": "", "price": 1' + b"0" * 400 + b"}", "price: is too large"),
        (Tree, b'{"left": {"left": 1, "right": 1}}', "left.left: must be Tree or null, not int 1"),
        (Order | Refund, b'{"new": {"id": 1}, "id": "x"}', "id: must be an integer, not str 'x'"),
        (set, b"[[1]]", "can not be in a set: unhashable type: 'list'"),
        (frozenset[Any], b'[{"a": 1}]', "can not be in a frozenset: unhashable type: 'dict'"),
        (tuple[int, str], b"[1]", "must have 2 entries, not 1"),
        (tuple[int, str], b"[1, 2]", "[1]: must be text, not int 2"),
        (Literal["a", 2], b'"b"', "must be one of 'a', 2, not str 'b'"),
        (list[date], b'["tomorrow"]', "[0]: is no date: str 'tomorrow'"),
        (list[Decimal], b"[1.5]", "[0]: must be text of a Decimal, not float 1.5"),
        (list[Decimal], b'["x"]', "[0]: is no Decimal"),
        (int | str, b"[]", "must be int or str, not list []"),
        (Checked, b'{"id": -1}', "id must not be negative"),
        (Model, b'{"id": "x"}', "id: Input should be a valid integer"),
        (Model, b'{"lines": [1, "x"]}', "id: Field required (and 1 more)"),
        (Model, b'{"id": 1, "lines": [0, "x"]}', "lines[1]: Input should be a valid integer"),
        (WithModel, b'{"model": {}}', "model.id: Field required"),
        (Header, b"\xff", "is no sharecoord.v1.Header"),
        (NamePart, b"", "is missing"),
    ],
)
def test_a_value_that_is_not_of_its_type_says_what_is_wrong(
    hint: Any, value: bytes | None, text: str
) -> None:
    with pytest.raises(BadValueError) as caught:
        read(hint, value)
    assert text in str(caught.value)


@dataclass
class Unreadable:
    what: complex


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int | complex, "nothing reads complex"),
        (complex, "nothing reads complex"),
        (Unreadable, "Unreadable.what: nothing reads complex"),
        (list[Unreadable], "Unreadable.what: nothing reads complex"),
        (dict[int, str], "names are str, not int"),
        (list[bytes], "nothing reads bytes"),
        (Any, "nothing says how values are read"),
        (set[dict], "a set can not hold dict, which has no hash; use list"),
        (frozenset[list[int]], r"a frozenset can not hold list\[int\], which has no hash"),
        (set[Order], "a set can not hold Order, which has no hash"),
        (set[int | dict], "a set can not hold dict"),
        (set[tuple[int, set[int]]], r"a set can not hold set\[int\]"),
        (set[Shelves], r"a set can not hold list\[int\]"),
        (set[Model], "a set can not hold Model"),
        (set[NewType("Row", dict)], "a set can not hold dict"),  # type: ignore[misc]
        (dict[str], r"dict needs two types, as dict\[str, X\]"),  # type: ignore[misc]
        (dict[str, set[dict]], "a set can not hold dict"),
        (list["Order"], "'Order' is a text inside a type; write Order without quotes"),
        (dict["str", int], "'str' is a text inside a type"),
        (Misspelt, "Misspelt: AttributeError: type object 'datetime.datetime' has no"),
        (Nothing, "Nothing has no members"),
        (Never, "nothing reads Never"),
        (LiteralString, "nothing reads LiteralString"),
        (Callable[[int], int], r"nothing reads collections.abc.Callable\[\[int\], int\]"),
        (NewType("Odd", complex), "nothing reads complex"),
    ],
)
def test_a_type_that_nothing_reads_is_refused_at_once(hint: Any, text: str) -> None:
    with pytest.raises(UnreadableTypeError, match=text):
        value_reader(hint)
    with pytest.raises(TypeError, match=r"handler .*take, parameter 'order': "):

        @Worker(CONF).handler("t")
        async def take(order: hint) -> None: ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, 5, 5),
        (Order, {"id": 7}, Order(7)),
        (Order, Order(7), Order(7)),
        (Order | None, {"id": 7}, Order(7)),
        (list[Order], [{"id": 7}], [Order(7)]),
        (dict, {"id": 7}, {"id": 7}),
        (str, "text", "text"),
        (Order, '{"id": 7}', Order(7)),
        (Order, bytearray(b'{"id": 7}'), Order(7)),
        (Order, memoryview(b'{"id": 7}'), Order(7)),
        (Model, {"id": 7}, Model(id=7)),
        (Model, Model(id=7), Model(id=7)),
        (Model, memoryview(b'{"id": 7}'), Model(id=7)),
        (Header, Header(key="k"), Header(key="k")),
        (Header, bytearray(Header(key="k").SerializeToString()), Header(key="k")),
        (bytes, bytearray(b"x"), b"x"),
        (json.loads, "[1]", [1]),
    ],
)
def test_what_middleware_has_read_already_is_taken(hint: Any, value: Any, expected: Any) -> None:
    found = read(hint, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (bytes, 5, "must be bytes, not int 5"),
        (str, 5, "must be bytes, not int 5"),
        (Order, 5, "must be an object, not int 5"),
        (Order, {"id": "7"}, "id: must be an integer, not str '7'"),
        (int, 2.5, "must be an integer, not float 2.5"),
        (Model, 5, "Input should be a valid dictionary"),
        (Header, 5, "must be bytes, not int 5"),
        (Header, "text", "must be bytes, not str 'text'"),
        (json.loads, 5, "TypeError"),
    ],
)
def test_what_middleware_has_set_may_be_bad(hint: Any, value: Any, text: str) -> None:
    with pytest.raises(BadValueError) as caught:
        read(hint, value)
    assert text in str(caught.value)


def test_callables_take_bytes_or_bytes_and_context() -> None:
    seen: list[Any] = []

    def with_context(data: bytes, ctx: SerializationContext) -> str:
        seen.append((ctx.topic, ctx.field, ctx.headers))
        return data.decode()

    def like_confluents(value: bytes, ctx: SerializationContext | None = None) -> str:
        return with_context(value, ctx) if ctx is not None else "none"

    assert read(json.loads, b"[1]") == [1]
    assert read(with_context, b"a") == "a"
    assert read(like_confluents, b"b") == "b"
    assert seen == [("orders", "value", [("h", b"1")])] * 2
    assert read(lambda data: data, None) is None, "nulls are theirs"
    with pytest.raises(BadValueError, match="JSONDecodeError: Expecting value"):
        read(json.loads, b"x")


# -- handlers -----------------------------------------------------------------------------------


async def takes_value(order: Order) -> None:
    assert isinstance(order, Order)


def takes_both(message: Message, order: Order) -> None:
    assert (message.topic(), order.id) == ("t", 7)


async def takes_message(message: Message) -> None:
    assert isinstance(message, Message)


def only_for_checkers(message: checkers.Message) -> None:
    assert isinstance(message, Message)


def with_default(order: Order, dry: bool = False) -> None:
    assert (order.id, dry) == (7, False)


class Service:
    def handle(self, order: Order) -> None:
        assert order.id == 7

    async def __call__(self, message: Message, order: Order) -> None:
        assert order.id == 7


@pytest.mark.parametrize(
    "handler",
    [
        takes_value,
        takes_both,
        takes_message,
        only_for_checkers,
        with_default,
        Service().handle,
        Service(),
        functools.partial(takes_both),
        functools.partial(with_default, dry=False),
        lambda message: isinstance(message, Message) or 1 / 0,
        lambda *records: isinstance(records[0], Message) or 1 / 0,
    ],
)
def test_parameters_are_filled_by_their_hints(handler: Callable[..., Any]) -> None:
    outcome = run_handler(handler, make_message(b'{"id": 7}', topic="t"))
    assert (outcome.error, outcome.type) == (None, AcknowledgeType.ACCEPT)


@pytest.mark.parametrize(
    ("handler", "value"),
    [
        (lambda order: order["id"] == 7 or 1 / 0, json.loads),
        (lambda order: order.id == 7 or 1 / 0, Order),
        (lambda message, order: (message.topic(), order.id) == ("t", 7) or 1 / 0, Order),
        (lambda *values: values[0].id == 7 or 1 / 0, Order),
    ],
)
def test_what_a_value_is_can_be_said(handler: Callable[..., Any], value: Any) -> None:
    outcome = run_handler(handler, make_message(b'{"id": 7}', topic="t"), value=value)
    assert outcome.error is None


def nothing() -> None:
    """Takes nothing."""


def three(message: Message, order: Order, more: int) -> None:
    """Takes too much."""


def keyword(order: Order, *, database: object) -> None:
    """Wants what nobody has."""


def two_unknown(message: Message, order) -> None:  # type: ignore[no-untyped-def]
    """Does not say what the second is."""


def value_first(order: Order, message: Message) -> None:
    """The other way round."""


def unreadable(order: complex) -> None:
    """A type that nothing reads."""


def undefined(order: NoSuchType) -> None:  # type: ignore[name-defined]  # noqa: F821
    """A hint that does not exist."""


@pytest.mark.parametrize(
    ("handler", "settings", "text"),
    [
        (nothing, {}, "handler nothing: it takes nothing; a handler takes the message"),
        (three, {}, "handler three: nobody fills parameter 'more'"),
        (keyword, {}, "handler keyword: nobody fills parameter 'database'"),
        (two_unknown, {}, "handler two_unknown: nobody fills parameter 'order'"),
        (value_first, {}, "parameter 'order' must be the message"),
        (unreadable, {}, "handler unreadable, parameter 'order': nothing reads complex; use"),
        (undefined, {}, "handler undefined, parameter 'order': the hint 'NoSuchType' is unknown"),
        (takes_message, {"value": Order}, "value= is given, and nothing takes the value"),
        (takes_value, {"value": 7}, "handler takes_value, parameter 'order': 7 is neither"),
        (takes_value, {"on_bad_value": 7}, "on_bad_value must be Reject, Retry"),
        (takes_value, {"on_bad_value": ValueError}, "on_bad_value must be Reject, Retry"),
    ],
)
def test_wiring_that_can_not_work_is_told_at_registration(
    handler: Any, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        Worker(CONF).handler("t", **settings)(handler)


# -- bad values ---------------------------------------------------------------------------------


def by_topic(message: Message, error: BadValueError) -> Any:
    return Retry(after_s=9, reason=f"{message.topic()}: {error.where}")


NO_OUTCOME = (
    "TypeError: on_bad_value must give Reject or Retry, not None, for a bad value: id: is missing"
)
NULL = "bad value: the value is null; `Order | None` takes nulls"


@pytest.mark.parametrize(
    ("on_bad_value", "expected"),
    [
        (Reject, (AcknowledgeType.REJECT, 0, "bad value: id: is missing")),
        (Retry, (AcknowledgeType.RELEASE, 0, "bad value: id: is missing")),
        (Reject("unusable"), (AcknowledgeType.REJECT, 0, "unusable")),
        (Retry(after_s=5), (AcknowledgeType.RELEASE, 5000, "")),
        (by_topic, (AcknowledgeType.RELEASE, 9000, "t: id")),
        (lambda message, error: Reject, (AcknowledgeType.REJECT, 0, "bad value: id: is missing")),
        (
            lambda message, error: None,
            (
                AcknowledgeType.RELEASE,
                0,
                NO_OUTCOME,
            ),
        ),
    ],
)
def test_what_a_bad_value_becomes_is_settable(on_bad_value: Any, expected: Any) -> None:
    message = make_message(b"{}", topic="t")
    outcome = run_handler(takes_value, message, on_bad_value=on_bad_value)
    assert (outcome.type, outcome.delay_ms, outcome.reason) == expected


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_worker_hands_values_to_its_handlers(kind: str, make: Make) -> None:
    running, seen = make(), list[Any]()

    def plain(message: Message, order: Order) -> None:
        seen.append((message.offset(), order.id))

    async def coroutine(order: Order) -> None:
        seen.append((order.id - 10, order.id))

    running.worker.handler("t")(plain if kind == "plain" else coroutine)
    stream = running.start()
    stream.send(make_batch([b'{"id": 10}', b'{"id": 11}', b'{"id": "x"}', None]))
    assert wait_covered(stream, 4) == [0, 1, 2, 3]
    assert sorted(seen) == [(0, 10), (1, 11)]
    rejected = [ack for ack in stream.acks() if ack.kind == "REJECT"]
    assert sorted(rejected, key=lambda ack: ack.first) == [
        Ack("t", 0, 2, 2, "REJECT", 1, 0, "bad value: id: must be an integer, not str 'x'"),
        Ack(
            "t", 0, 3, 3, "REJECT", 1, 0, "bad value: the value is null; `Order | None` takes nulls"
        ),
    ]
    running.stop()


def test_nothing_is_imported_that_nobody_uses() -> None:
    code = (
        "import sys, sharecoord_sdk, sharecoord_sdk.values\n"
        "worker = sharecoord_sdk.Worker({'group.id': 'g'})\n"
        "worker.handler('t')(lambda message: None)\n"
        "print([n for n in ('pydantic', 'fastavro', 'opentelemetry') if n in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"
