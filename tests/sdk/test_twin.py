"""The same calls on both classes, offline: same results, same exception types, same codes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import sharecoord_sdk
from sharecoord_sdk._core.config_table import SETTINGS, read_callable, read_inapplicable

# Nobody listens there: the twin is happy to try for ever.
NOBODY: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
BOTH = (confluent_kafka, sharecoord_sdk)


def tell(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a call does, in words that can be compared between the two."""
    try:
        result = call(*arguments)
    except Exception as error:  # noqa: BLE001 - that is what is compared
        first: Any = error.args[0] if error.args else None
        code = first.code() if hasattr(first, "code") else None
        return type(error).__name__, code
    return "returned", "Messages" if type(result).__name__ == "Messages" else result


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (None,),
        ("x",),
        ([],),
        ({},),
        ({}, {}),
        ({"bootstrap.servers": "127.0.0.1:1"},),
        ({**NOBODY, "nonsense.key": 1},),
        ({**NOBODY, "bootstrap.server": "x"},),
        ({**NOBODY, "Group.Id": "x"},),
        ({"group.id": "g", 5: 6},),
        ({**NOBODY, "max.poll.records": "abc"},),
        ({**NOBODY, "max.poll.records": 0},),
        ({**NOBODY, "max.poll.records": -1},),
        ({**NOBODY, "max.poll.records": 10**12},),
        ({**NOBODY, "max.poll.records": True},),
        ({**NOBODY, "max.poll.records": None},),
        ({**NOBODY, "max.poll.interval.ms": 0},),
        ({**NOBODY, "max.poll.interval.ms": 86_400_001},),
        ({**NOBODY, "socket.timeout.ms": 5},),
        ({**NOBODY, "socket.timeout.ms": 400_000},),
        ({**NOBODY, "reconnect.backoff.ms": -1},),
        ({**NOBODY, "security.protocol": "x"},),
        ({**NOBODY, "security.protocol": "SASL_SSL"},),
        ({**NOBODY, "statistics.interval.ms": -5},),
        ({**NOBODY, "interceptor.classes": "x"},),
        ({**NOBODY, "value.deserializer": print},),
        ({**NOBODY, "error_cb": 5},),
        ({**NOBODY, "error_cb": None},),
        ({**NOBODY, "oauth_cb": print},),
        ({**NOBODY, "log_cb": print},),
        ({**NOBODY, "rebalance_cb": print},),
        ({**NOBODY, "on_commit": print},),
        ({**NOBODY, "sasl.jaas.config": "x"},),
        ({**NOBODY, "ssl.truststore.location": "x"},),
    ],
)
def test_constructors_refuse_the_same(arguments: tuple[Any, ...]) -> None:
    twin, ours = (tell(lambda m: m.ShareConsumer(*arguments), module) for module in BOTH)
    assert ours == twin
    assert ours[0] != "returned"


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"\xff\xfe"])
def test_files_of_tls_are_looked_at_by_the_constructor(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = tmp_path / "given.pem"
    if content is not None:
        path.write_bytes(content)
    config = {**NOBODY, "security.protocol": "ssl", f"ssl.{name}.location": str(path)}
    if name != "ca":
        # Both go together; here alone is the certificate's or the key's file bad.
        other = {"key": "certificate", "certificate": "key"}[name]
        config[f"ssl.{other}.location"] = str(path)
    twin, ours = (tell(lambda m: m.ShareConsumer(config), module) for module in BOTH)
    assert ours == twin == ("ValueError", None)


@pytest.mark.parametrize(
    "extra",
    [
        {"max.poll.records": "100"},
        {"max.poll.records": 10_001},
        {"max.poll.records": 2**31 - 1},
        {"ssl.ca.location": "/nowhere"},
        {"max.poll.records": 1},
        {"client.id": 5},
        {"client.id": ""},
        {"security.protocol": "SSL"},
        {"share.acknowledgement.mode": "EXPLICIT"},
        {"share.acknowledgement.mode": "implicit"},
        {"logger": None},
        {"error_cb": print},
        {"stats_cb": print},
        {"linger.ms": 5},
        {"enable.ssl.certificate.verification": True},
        {"ssl.endpoint.identification.algorithm": "https"},
        {"statistics.interval.ms": 0},
        {"metadata.broker.list": "127.0.0.1:2"},
        {"client.rack": "r"},
        {"sasl.mechanism": "PLAIN"},
        {"default.topic.config": {}},
    ],
)
def test_constructors_accept_the_same(extra: dict[str, Any]) -> None:
    def made(module: Any, *arguments: Any, **keywords: Any) -> list[str]:
        with module.ShareConsumer(*arguments, **keywords) as consumer:
            return list(consumer.subscription())

    for module in BOTH:
        assert tell(lambda m: made(m, {**NOBODY, **extra}), module) == ("returned", [])
        assert tell(lambda m: made(m, NOBODY, **extra), module) == ("returned", [])


@pytest.mark.parametrize("name", [n for n, s in SETTINGS.items() if s.read is read_inapplicable])
def test_keys_that_share_consumers_do_not_have_are_refused_alike(name: str) -> None:
    values = {
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "group.protocol": "consumer",
        "enable.auto.commit": "true",
        "enable.partition.eof": "true",
        "allow.auto.create.topics": "true",
    }
    config = {**NOBODY, name: values.get(name, "1000")}
    for module in BOTH:
        with pytest.raises(ValueError, match=r"share consumer"):
            module.ShareConsumer(config)


def test_every_key_of_the_table_is_one_of_the_twins_or_known_to_be_ours() -> None:
    ours_or_javas = {
        "default.api.timeout.ms",
        "fetch.max.wait.ms",
        "interceptor.classes",
        "share.acquire.mode",
        "sharecoord.buffer.bytes",
        "sharecoord.record.batches",
        "sharecoord.buffer.records",
        "ssl.truststore.password",
    }
    unknown = set()
    for name, setting in SETTINGS.items():
        value = print if setting.read is read_callable else "\x01"
        try:
            confluent_kafka.ShareConsumer({**NOBODY, name: value}).close()
        except Exception as error:  # noqa: BLE001
            if "No such configuration property" in str(error):
                unknown.add(name)
    assert unknown == ours_or_javas


Consumers = tuple[Any, Any]


@pytest.fixture(scope="module", params=["implicit", "explicit"])
def consumers(request: pytest.FixtureRequest) -> Iterator[Consumers]:
    config = {**NOBODY, "share.acknowledgement.mode": request.param}
    made = tuple(module.ShareConsumer(config) for module in BOTH)
    yield made
    for consumer in made:
        consumer.close()


@pytest.fixture(scope="module")
def closed() -> Consumers:
    made = tuple(module.ShareConsumer(NOBODY) for module in BOTH)
    for consumer in made:
        consumer.close()
    return made


def message(module: Any, *arguments: Any, **keywords: Any) -> Any:
    """A message of the module under test."""
    return module.Message(*arguments, **keywords)


Call = Callable[[Any, Any], Any]
CALLS: dict[str, Call] = {
    "subscription": lambda c, m: c.subscription(),
    "subscription(1)": lambda c, m: c.subscription(1),
    "subscribe()": lambda c, m: c.subscribe(),
    "subscribe(None)": lambda c, m: c.subscribe(None),
    "subscribe(str)": lambda c, m: c.subscribe("abc"),
    "subscribe(tuple)": lambda c, m: c.subscribe(("a", "b")),
    "subscribe(set)": lambda c, m: c.subscribe({"a"}),
    "subscribe(empty name)": lambda c, m: c.subscribe([""]),
    "subscribe(twice)": lambda c, m: c.subscribe(["a", "a"]),
    "subscribe(two)": lambda c, m: c.subscribe(["a"], ["b"]),
    "subscribe(on_assign)": lambda c, m: c.subscribe(["a"], on_assign=print),
    "subscribe([1])": lambda c, m: (c.subscribe([1]), c.subscription()),
    "subscribe(kw)": lambda c, m: (c.subscribe(topics=["kw"]), c.subscription()),
    "subscribe([])": lambda c, m: (c.subscribe([]), c.subscription()),
    "unsubscribe": lambda c, m: (c.subscribe(["a"]), c.unsubscribe(), c.subscription()),
    "unsubscribe(1)": lambda c, m: c.unsubscribe(1),
    "poll unsubscribed": lambda c, m: (c.unsubscribe(), c.poll(0)),
    "poll(str)": lambda c, m: c.poll("x"),
    "poll(None)": lambda c, m: c.poll(None),
    "poll(bytes)": lambda c, m: c.poll(b"x"),
    "poll(1, 2)": lambda c, m: c.poll(1, 2),
    "poll(Decimal)": lambda c, m: (c.subscribe(["a"]), len(c.poll(Decimal(0)))),
    "poll(Fraction)": lambda c, m: (c.subscribe(["a"]), len(c.poll(Fraction(1, 100)))),
    "poll(complex)": lambda c, m: c.poll(1j),
    "poll(10**400)": lambda c, m: c.poll(10**400),
    "commit_sync(Decimal)": lambda c, m: c.commit_sync(Decimal(0)),
    "poll(foo)": lambda c, m: c.poll(foo=1),
    "poll(0)": lambda c, m: (c.subscribe(["a"]), len(c.poll(0))),
    "poll(0.01)": lambda c, m: (c.subscribe(["a"]), len(c.poll(timeout=0.01))),
    "acknowledge()": lambda c, m: c.acknowledge(),
    "acknowledge(None)": lambda c, m: c.acknowledge(None),
    "acknowledge(str)": lambda c, m: c.acknowledge("x"),
    "acknowledge(foo)": lambda c, m: c.acknowledge(message(m, "a", 0, 5), foo=2),
    "acknowledge(empty)": lambda c, m: c.acknowledge(message(m)),
    "acknowledge(no topic)": lambda c, m: c.acknowledge(message(m, partition=0, offset=1)),
    "acknowledge(partition -1)": lambda c, m: c.acknowledge(message(m, "a", -1, 1)),
    "acknowledge(offset -1)": lambda c, m: c.acknowledge(message(m, "a", 0, -1)),
    "commit_sync": lambda c, m: c.commit_sync(),
    "commit_sync(0)": lambda c, m: c.commit_sync(0),
    "commit_sync(str)": lambda c, m: c.commit_sync("x"),
    "commit_sync(None)": lambda c, m: c.commit_sync(None),
    "commit_sync(1, 2)": lambda c, m: c.commit_sync(1, 2),
    "commit_sync(foo)": lambda c, m: c.commit_sync(asynchronous=1),
    "commit_async": lambda c, m: c.commit_async(),
    "commit_async(1)": lambda c, m: c.commit_async(1),
    "commit_async(x)": lambda c, m: c.commit_async(x=1),
    "callback()": lambda c, m: c.set_acknowledgement_commit_callback(),
    "callback(5)": lambda c, m: c.set_acknowledgement_commit_callback(5),
    "callback(None)": lambda c, m: c.set_acknowledgement_commit_callback(None),
    "callback(kw)": lambda c, m: c.set_acknowledgement_commit_callback(callback=print),
    "sasl": lambda c, m: c.set_sasl_credentials("u", "p"),
    "sasl(1)": lambda c, m: c.set_sasl_credentials("u"),
    "sasl(int)": lambda c, m: c.set_sasl_credentials("u", 5),
    "sasl(None)": lambda c, m: c.set_sasl_credentials(None, None),
    "close(1)": lambda c, m: c.close(1),
    "close(timeout)": lambda c, m: c.close(timeout=1),
    "enter": lambda c, m: c.__enter__() is c,
}
KINDS = (1, 2, 3, 0, 9, -1, "x", None, 1.5, True, 2**40, 2**70)
PLACES: tuple[tuple[Any, ...], ...] = (
    ("a\x00", 0, 5),
    (),
    ("a",),
    ("a", 0),
    ("a", 0, 5),
    ("a", -1, 5),
    ("a", 0, -5),
    (None, 0, 5),
    (b"a", 0, 5),
    ("a", "0", 5),
    ("a", 0, "5"),
    ("a", 1.5, 5),
    ("a", 0, 5.5),
    ("a", 2**40, 5),
    ("a", 0, 2**70),
    ("", 0, 5),
    ("a", 0, 5, "x"),
    ("a", 0, 5, None),
    ("a", -1, 5, 9),
    (1, -1, -5, 9),
    ("a", True, True),
    ("a", 0, 5, 9),
    ("a", 0, 5, 1, 1),
)


@pytest.mark.parametrize("name", CALLS)
def test_open_consumers_answer_alike(consumers: Consumers, name: str) -> None:
    twin, ours = (
        tell(CALLS[name], consumer, module)
        for consumer, module in zip(consumers, BOTH, strict=True)
    )
    assert ours == twin


@pytest.mark.parametrize("kind", KINDS)
def test_acknowledge_types_are_checked_alike(consumers: Consumers, kind: Any) -> None:
    twin, ours = (
        tell(lambda c, m: c.acknowledge(message(m, "a", 0, 5), kind), consumer, module)
        for consumer, module in zip(consumers, BOTH, strict=True)
    )
    assert ours == twin


@pytest.mark.parametrize("place", PLACES)
def test_coordinates_are_checked_alike(consumers: Consumers, place: tuple[Any, ...]) -> None:
    twin, ours = (tell(lambda c: c.acknowledge_offset(*place), one) for one in consumers)
    assert ours == twin


# Calls whose arguments Python itself refuses, before the method can say that it is closed.
_REFUSED_BY_PYTHON = {
    *("subscribe()", "acknowledge()", "callback()", "sasl(1)"),
    *("subscribe(two)", "subscribe(on_assign)", "subscription(1)", "unsubscribe(1)"),
    *("poll(1, 2)", "poll(foo)", "acknowledge(foo)", "commit_sync(1, 2)", "commit_sync(foo)"),
    *("commit_async(1)", "commit_async(x)", "close(1)", "close(timeout)"),
}


@pytest.mark.parametrize("name", [n for n in CALLS if n not in _REFUSED_BY_PYTHON])
def test_closed_consumers_answer_alike(closed: Consumers, name: str) -> None:
    twin, ours = (
        tell(CALLS[name], consumer, module) for consumer, module in zip(closed, BOTH, strict=True)
    )
    assert ours == twin


def test_closing_twice_and_using_with_are_allowed_alike() -> None:
    for module in BOTH:
        with module.ShareConsumer(NOBODY) as consumer:
            assert tell(lambda c: c.close(), consumer) == ("returned", None)
        assert tell(lambda c: c.close(), consumer) == ("returned", None)
        assert tell(lambda c: c.subscription(), consumer) == ("IllegalStateException", None)


def test_an_object_without_its_constructor_is_closed_alike() -> None:
    for module in BOTH:
        made = module.ShareConsumer.__new__(module.ShareConsumer)
        assert tell(lambda c: c.poll(0), made) == ("IllegalStateException", None)


def test_public_methods_of_the_twin_are_all_here() -> None:
    def public(owner: type) -> set[str]:
        return {name for name in dir(owner) if not name.startswith("_")}

    for name in ("ShareConsumer", "DeserializingShareConsumer", "Message", "Messages"):
        missing = public(getattr(confluent_kafka, name)) - public(getattr(sharecoord_sdk, name))
        assert not missing, name
    extra = public(sharecoord_sdk.ShareConsumer) - public(confluent_kafka.ShareConsumer)
    assert extra == {"acquisition_lock_timeout_ms", "checkpoint", "pause", "resume"}
    assert public(sharecoord_sdk.AsyncShareConsumer) == public(sharecoord_sdk.ShareConsumer)


def test_error_codes_are_the_twins() -> None:
    twin, ours = confluent_kafka.KafkaError, sharecoord_sdk.KafkaError
    codes = {n: v for n, v in inspect.getmembers(twin) if isinstance(v, int)}
    assert len(codes) > 150
    for name, number in codes.items():
        assert getattr(ours, name) == number
        assert ours(number).name() == twin(number).name()
        assert ours(number).str() == twin(number).str()
        assert repr(ours(number)) == repr(twin(number))


@pytest.mark.parametrize(
    "show",
    [
        lambda m: repr(m.KafkaError(3, "boo", True, True, True)),
        lambda m: str(m.KafkaError(9999)),
        lambda m: m.KafkaError(-185) == -185,
        lambda m: m.KafkaError(-185) == m.KafkaError(-185, "other text"),
        lambda m: m.KafkaError(-185) < 0,
        lambda m: m.KafkaError(-185) > m.KafkaError(3),
        lambda m: hash(m.KafkaError(3)),
        lambda m: bool(m.KafkaError(0)),
        lambda m: m.KafkaError("x"),
        lambda m: repr(m.KafkaException(m.KafkaError(3))),
        lambda m: issubclass(m.IllegalStateException, RuntimeError),
        lambda m: issubclass(m.ConcurrentModificationException, RuntimeError),
        lambda m: list(m.AcknowledgeType)[:3],
        lambda m: (m.TIMESTAMP_NOT_AVAILABLE, m.TIMESTAMP_CREATE_TIME, m.TIMESTAMP_LOG_APPEND_TIME),
        lambda m: repr(m.TopicPartition("a", 1, 5)),
        lambda m: repr(m.TopicPartition(topic="a", partition=1, metadata="m", leader_epoch=3)),
        lambda m: m.TopicPartition("a", 1, 5) == m.TopicPartition("a", 1),
        lambda m: m.TopicPartition("a", 1) < m.TopicPartition("a", 2),
        lambda m: hash(m.TopicPartition("a", 1, 5)) == hash(m.TopicPartition("a", 1)),
        lambda m: [t.partition for t in sorted([m.TopicPartition("a", 3), m.TopicPartition("a")])],
        lambda m: m.TopicPartition(),
        lambda m: m.TopicPartition(1),
        lambda m: m.TopicPartition("a", "b"),
        lambda m: m.TopicPartition("a", 2**40),
        lambda m: setattr(m.TopicPartition("a"), "topic", "b"),
        lambda m: setattr(m.TopicPartition("a"), "foo", "b"),
        lambda m: m.TopicPartition("a").offset,
        lambda m: len(m.Message(value=b"abc")),
        lambda m: bool(m.Message()),
        lambda m: m.Message().timestamp(),
        lambda m: m.Message(timestamp=5),
        lambda m: m.Message(foo=5),
        lambda m: m.Message(partition="3"),
        lambda m: hash(m.Message()),
        lambda m: m.Message("t", 1, 2) == m.Message("t", 1, 2),
        lambda m: m.Message("t", 1, 2) == m.Message("t", 1, 3),
        lambda m: m.Message(delivery_count=3).delivery_count(),
        lambda m: setattr(m.Message(), "foo", 1),
        lambda m: len(m.Messages([m.Message(), m.Message()])[0:1]),
        lambda m: m.Messages([m.Message()])[5],
        lambda m: m.Messages([m.Message()])["x"],
        lambda m: repr(m.Messages()),
        lambda m: bool(m.Messages()),
        lambda m: len(list(reversed(m.Messages([m.Message()])))),
    ],
)
def test_values_behave_alike(show: Callable[[Any], Any]) -> None:
    twin, ours = (tell(show, module) for module in BOTH)
    assert ours == twin


def test_setters_of_a_message_behave_alike() -> None:
    shown = []
    for module in BOTH:
        made = module.Message("t", 1, 2, b"k", b"v", [("h", b"1")], None, (1, 1000), 0.5, 3)
        made.set_value("x")
        made.set_key(5)
        made.set_headers([("a", b"b")])
        made.set_error(module.KafkaError(3))
        made.set_topic("z")
        shown.append(
            (
                (made.value(), made.key(), made.headers(), made.error().code(), made.topic()),
                (made.deserialized_key(), made.deserialized_value(), len(made)),
                (made.latency(), made.leader_epoch(), made.timestamp(), made.offset()),
            )
        )
    assert shown[0] == shown[1]


def test_the_configuration_of_a_deserializing_consumer_is_its_argument_conf() -> None:
    for module in BOTH:
        given = {**NOBODY, "key.deserializer": None, "value.deserializer": print}
        with module.DeserializingShareConsumer(conf=given) as consumer:
            assert consumer.subscription() == []
        assert "value.deserializer" in given, "the program's own"


@pytest.mark.parametrize("kind", [1, 9, 0])
def test_a_message_of_the_twin_stands_for_its_coordinates(consumers: Consumers, kind: int) -> None:
    message = confluent_kafka.Message(topic="a", partition=0, offset=5)
    twin, ours = (tell(lambda c: c.acknowledge(message, kind), one) for one in consumers)
    assert ours == twin
    assert ours != ("returned", None)


def test_throttle_events_are_alike() -> None:
    for module in BOTH:
        event = module.ThrottleEvent("b1", 3, 0.25)
        assert (event.broker_name, event.broker_id, event.throttle_time) == ("b1", 3, 0.25)
        assert str(event) == "b1/3 throttled for 250 ms"


def test_deserializers_get_the_same_and_mark_the_same() -> None:
    told: list[list[tuple[Any, ...]]] = []
    for module in BOTH:
        seen: list[tuple[Any, ...]] = []

        def key(data: Any, context: Any, seen: list[tuple[Any, ...]] = seen) -> Any:
            seen.append((data, context.topic, context.field, context.headers))
            return int(data)

        def value(data: Any, context: Any, seen: list[tuple[Any, ...]] = seen) -> Any:
            seen.append((data, context.topic, context.field, context.headers))
            return data.decode("ascii")

        consumer = module.DeserializingShareConsumer(
            {**NOBODY, "key.deserializer": key, "value.deserializer": value}
        )
        good = module.Message("t", 0, 0, b"7", b"v", [("h", b"1")])
        bad_key = module.Message("t", 0, 1, b"k", b"v")
        bad_value = module.Message("t", 0, 2, b"7", b"\xff")
        for made in (good, bad_key, bad_value):
            apply = getattr(consumer, "_deserialize", None) or consumer._deserializers._apply_one
            apply(made)
            error = made.error()
            code = None if error is None else error.code()
            seen.append((made.key(), made.value(), code))
        consumer.close()
        told.append(seen)
    assert told[0] == told[1]
