"""Outcomes, errors and public values survive pickling and copying: process pools send them so."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import threading
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import sharecoord_sdk
from sharecoord_sdk import (
    BatchOutcome,
    KafkaError,
    KafkaException,
    Message,
    Messages,
    Reject,
    Retry,
    TopicPartition,
)
from sharecoord_sdk._core.columns import Columns, HandOut, PartitionKey, Span
from sharecoord_sdk.testing import make_message, make_messages
from sharecoord_sdk.values import BadValueError

from tests.sdk.fake_coordinator import Ack, make_batch
from tests.sdk.worker_running import PATIENCE_S, Make

SPAWN = multiprocessing.get_context("spawn")


def classes() -> Iterator[type]:
    """Every class that a module of the SDK defines."""
    for found in pkgutil.walk_packages(sharecoord_sdk.__path__, "sharecoord_sdk."):
        module = importlib.import_module(found.name)
        for each in vars(module).values():
            if inspect.isclass(each) and each.__module__ == module.__name__:
                yield each


def is_public(kind: type) -> bool:
    """Whether one of the public modules exports it."""
    public = ("", ".admin", ".worker", ".values", ".testing", ".contrib.sqlalchemy")
    modules = [importlib.import_module(f"sharecoord_sdk{each}") for each in public]
    return any(kind is getattr(module, name) for module in modules for name in module.__all__)


ERRORS = [each for each in classes() if issubclass(each, BaseException)]
VALUES = [each for each in classes() if dataclasses.is_dataclass(each) and is_public(each)]


def some(hint: Any) -> Any:
    """A value of a type hint that is no default."""
    origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return some(args[0])
    if origin is tuple:
        return tuple(some(each) for each in args if each is not ...)
    if origin in (list, Sequence, Iterable):
        return [some(args[0])]
    if origin in (dict, Mapping):
        return {some(args[0]): some(args[1])}
    if hint == type[BaseException]:
        return OSError
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return list(hint)[-1]
    if isinstance(hint, type) and (hint in VALUES or hint in ERRORS):
        return made(hint)
    simple = {str: "text", int: 7, float: 1.0, bool: True, bytes: b"\xff", Any: "anything"}
    simple[Exception] = KeyError("text")
    assert hint in simple, f"teach this test what a {hint} is"
    return simple[hint]


def made(kind: type) -> Any:
    """An object whose arguments are all given."""
    if issubclass(kind, BaseException) and "__init__" not in {
        n for b in own(kind) for n in vars(b)
    }:
        return kind(KafkaError(7)) if kind is KafkaException else kind("text", 7)
    hints = typing.get_type_hints(kind.__init__)
    given, named = list[Any](), dict[str, Any]()
    for name, each in list(inspect.signature(kind).parameters.items()):
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            named[name] = some(hints[name])
        else:
            given.append(some(hints[name]))
    return kind(*given, **named)


def own(kind: type) -> list[type]:
    return [each for each in kind.__mro__ if each.__module__.startswith("sharecoord_sdk")]


def fields(value: Any) -> Any:
    """Everything that a reader of it sees."""
    if isinstance(value, BaseException):
        return type(value), value.args, str(value), vars(value)
    if isinstance(value, BatchOutcome):
        return {place: fields(each) for place, each in value.failed.items()}
    if isinstance(value, Messages):
        return [fields(each) for each in value]
    if dataclasses.is_dataclass(value):
        return type(value), [fields(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, Message):
        return *value._fields(), value.delivery_count(), value.checkpoint_data()
    return value


def assert_survives(value: Any) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert fields(pickle.loads(pickle.dumps(value, protocol))) == fields(value)
    for each in (copy.copy(value), copy.deepcopy(value)):
        assert fields(each) == fields(value)


def test_the_search_finds_what_it_should() -> None:
    assert {Retry, Reject, KafkaException, BadValueError} <= set(ERRORS)
    assert len(ERRORS) > 15
    assert {"Outcome", "Backoff", "Breaker", "WorkerState"} <= {each.__name__ for each in VALUES}


@pytest.mark.parametrize("kind", ERRORS + VALUES, ids=lambda kind: kind.__name__)
def test_it_survives(kind: type) -> None:
    value = made(kind)
    if isinstance(value, BaseException):
        value.add_note("said by the application")
    assert_survives(value)


class Busy(Retry):
    """An outcome of the application, with arguments of its own."""

    def __init__(self, shop: str, *, until_s: float) -> None:
        super().__init__(until_s, f"{shop} is busy")
        self.shop = shop


def received() -> Messages:
    """As `poll` returns them."""
    batch = make_batch([b"a", b"b"])
    columns = Columns(batch, PartitionKey("t", 0, b"id"), 0.0)
    columns.unpack()
    # What handed it out.
    columns.owner = threading.Lock()
    return Messages._of(HandOut([Span(columns, columns.locks[0], 0, 2)]))


@pytest.mark.parametrize(
    "value",
    [
        Busy("tea", until_s=5),
        Retry(),
        Retry(0),
        Reject(),
        BatchOutcome({1: Retry(5), 2: Reject, 3: KeyError("x")}),
        KafkaError(7, "reason", fatal=True, retriable=True),
        TopicPartition("t", 1, 2, "metadata", 3),
        make_message(b"v", key=b"k", headers=[("h", None)], checkpoint=b"c"),
        make_messages([b"a", None]),
        received(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_this_survives(value: Any) -> None:
    assert_survives(value)


# -- for real -------------------------------------------------------------------------------------


def work(value: bytes) -> None:
    """Runs in another process."""
    match value:
        case b"retry":
            raise Retry(5, "busy")
        case b"reject":
            raise Reject("no order")
        case b"own":
            raise Busy("tea", until_s=7)
        case b"bad":
            raise BadValueError("is missing", "id")
        case _:
            return


def test_a_pool_of_processes_brings_them_back(make: Make) -> None:
    """And a handler that awaits one passes them on as the outcome of its record."""
    running = make(concurrency=5)
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:

        @running.worker.handler("t")
        async def handle(message: Message) -> None:
            await asyncio.get_running_loop().run_in_executor(pool, work, message.value())

        stream = running.start()
        stream.send(make_batch([b"retry", b"reject", b"own", b"bad", b"fine"]))
        acks = sorted(stream.wait_acks(5), key=lambda ack: ack.first)
        running.stop()
    assert acks == [
        Ack("t", 0, 0, 0, "RELEASE", 1, 5000, "busy"),
        Ack("t", 0, 1, 1, "REJECT", 1, 0, "no order"),
        Ack("t", 0, 2, 2, "RELEASE", 1, 7000, "tea is busy"),
        Ack("t", 0, 3, 3, "RELEASE", 1, 0, "BadValueError: id: is missing"),
        Ack("t", 0, 4, 4, "ACCEPT", 1),
    ]


def test_so_does_a_pool_of_multiprocessing() -> None:
    with SPAWN.Pool(1) as pool:
        with pytest.raises(Retry) as retry:
            pool.apply_async(work, (b"retry",)).get(PATIENCE_S)
        with pytest.raises(Busy) as busy:
            pool.apply_async(work, (b"own",)).get(PATIENCE_S)
        assert pool.apply_async(work, (b"fine",)).get(PATIENCE_S) is None
    assert (retry.value.after_s, retry.value.reason) == (5, "busy")
    assert (busy.value.after_s, busy.value.shop) == (7, "tea")
