"""Tokens on real streams, in both shells: where callbacks run, renewals, refusals, ends."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from sharecoord_sdk import AsyncShareConsumer, KafkaError, KafkaException, ShareConsumer
from sharecoord_sdk._core import credentials

from tests.sdk.driver import Driver, Drivers, inner
from tests.sdk.fake_coordinator import FakeCoordinator, FakeStream, Refusal, make_batch
from tests.support import eventually

ENDED = Refusal(grpc.StatusCode.UNAUTHENTICATED, "the token has ended", "UNAUTHENTICATED")
FOREVER = 1e12


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[FakeCoordinator]:
    """A coordinator behind a Unix socket, which takes credentials without TLS."""
    fake = FakeCoordinator(f"unix:{tmp_path / 's'}")
    yield fake
    fake.stop()


def config(address: str, callback: Callable[..., Any], **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "group.id": "g",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": callback,
        "reconnect.backoff.ms": 1,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def counted(life_s: float = FOREVER) -> Callable[[str], tuple[str, float]]:
    """A callback that gives t1, t2, …"""
    numbers = iter(range(1, 1_000_000))
    return lambda _: (f"t{next(numbers)}", time.time() + life_s)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens may be renewed within a moment."""
    monkeypatch.setattr(credentials, "RENEW_MIN_S", 0.0)


def next_stream(consumer: Driver, coordinator: FakeCoordinator) -> FakeStream:
    """Polls until the consumer has come back."""

    def look() -> FakeStream | None:
        assert consumer.poll(0.05).is_empty()
        return coordinator.stream_now()

    return eventually(look)


def test_a_callback_runs_in_a_thread_of_its_own(drivers: Drivers, socket: FakeCoordinator) -> None:
    seen: list[tuple[str, bool]] = []

    def callback(_: str) -> tuple[str, float]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            in_loop = False
        else:
            in_loop = True
        seen.append((threading.current_thread().name, in_loop))
        return "t", FOREVER

    consumer = drivers.make_with(config(socket.address, callback))
    assert seen == []
    consumer.subscribe(["t"])
    # Nobody polls: the token opens the stream.
    stream = socket.stream()
    assert stream.metadata["authorization"] == "Bearer t"
    assert seen == [("sharecoord-token", False)]


def test_no_call_waits_for_a_callback(drivers: Drivers, socket: FakeCoordinator) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def callback(_: str) -> tuple[str, float]:
        asked.set()
        go_on.wait(30)
        return "t", FOREVER

    consumer = drivers.make_with(config(socket.address, callback))
    consumer.subscribe(["t"])
    assert asked.wait(10)
    assert consumer.poll(0.01).is_empty()
    assert consumer.subscription() == ["t"]
    consumer.unsubscribe()
    consumer.subscribe(["u"])
    go_on.set()
    assert next_stream(consumer, socket).join.topics == ["u"]


def test_a_consumer_is_closed_while_its_callback_hangs(
    drivers: Drivers, socket: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharecoord_sdk._sync.timers.END_S", 0.01)
    asked, go_on = threading.Event(), threading.Event()

    def callback(_: str) -> tuple[str, float]:
        asked.set()
        go_on.wait(30)
        return "t", FOREVER

    consumer = drivers.make_with(config(socket.address, callback))
    consumer.subscribe(["t"])
    assert asked.wait(10)
    consumer.close()
    go_on.set()
    assert socket.streams_seen == []


def test_a_callback_may_use_the_consumer(drivers: Drivers, socket: FakeCoordinator) -> None:
    """Nothing that a call needs is held while a callback runs."""
    heard: list[Any] = []
    asked = threading.Event()

    def callback(_: str) -> tuple[str, float]:
        heard.append(inner(consumer).acquisition_lock_timeout_ms())
        asked.set()
        return "t", FOREVER

    consumer = drivers.make_with(config(socket.address, callback))
    consumer.subscribe(["t"])
    assert asked.wait(10)
    next_stream(consumer, socket)
    assert heard == [None]


@pytest.mark.usefixtures("soon")
def test_a_renewed_token_is_shown_while_nobody_polls(
    drivers: Drivers, socket: FakeCoordinator
) -> None:
    consumer = drivers.make_with(config(socket.address, counted(0.5)))
    consumer.subscribe(["t"])
    stream = next_stream(consumer, socket)
    stream.send(make_batch([b"a"]))
    assert len(consumer.poll(10)) == 1
    first = int(stream.metadata["authorization"].removeprefix("Bearer t"))
    stream.wait_for(lambda s: s.shown() and int(s.shown().removeprefix("Bearer t")) >= first + 2)
    assert len(socket.streams_seen) == 1
    assert consumer.commit_sync(10) != {}


@pytest.mark.usefixtures("soon")
def test_a_poll_that_waits_shows_a_renewed_token(drivers: Drivers, socket: FakeCoordinator) -> None:
    consumer = drivers.make_with(config(socket.address, counted(0.5)))
    consumer.subscribe(["t"])
    stream = next_stream(consumer, socket)
    answer = threading.Thread(
        target=lambda: stream.send(make_batch([stream.wait_shown().encode()])), daemon=True
    )
    answer.start()
    (message,) = consumer.poll(10)
    answer.join(10)
    assert message.value().startswith(b"Bearer t")
    assert len(socket.streams_seen) == 1


def test_an_ended_token_costs_no_record_and_no_error(
    drivers: Drivers, socket: FakeCoordinator
) -> None:
    told: list[KafkaError] = []
    consumer = drivers.make_with(config(socket.address, counted()) | {"error_cb": told.append})
    consumer.subscribe(["t"])
    stream = next_stream(consumer, socket)
    stream.send(make_batch([b"a", b"b"]))
    assert len(consumer.poll(10)) == 2
    stream.end(ENDED)
    stream.wait_over()

    def back() -> FakeStream | None:
        consumer.commit_sync(0.05)
        return socket.stream_now()

    again = eventually(back)
    assert again.metadata["authorization"] == "Bearer t2"
    (held,) = again.join.lock_book
    assert (held.first_offset, held.last_offset) == (0, 1)
    (ack,) = again.wait_acks(1)
    assert (ack.first, ack.last, ack.kind) == (0, 1, "ACCEPT")
    assert told == []


def test_a_fresh_token_that_is_refused_is_told_and_the_coordinator_left_in_peace(
    drivers: Drivers, socket: FakeCoordinator
) -> None:
    asked: list[str] = []

    def callback(_: str) -> tuple[str, float]:
        asked.append("")
        return f"t{len(asked)}", FOREVER

    socket.script.refusals = [ENDED] * 50
    consumer = drivers.make_with(config(socket.address, callback))
    consumer.subscribe(["t"])
    with pytest.raises(KafkaException, match="the token has ended") as caught:
        consumer.poll(10)
    error = caught.value.args[0]
    assert error.code() == KafkaError._AUTHENTICATION
    assert (error.fatal(), error.retriable()) == (False, False)
    shown = [stream.metadata["authorization"] for stream in socket.streams_seen]
    assert shown == ["Bearer t1", "Bearer t2"]


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ("group:g", KafkaError.GROUP_AUTHORIZATION_FAILED),
        ("topic:t", KafkaError.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_a_consumer_that_may_not_hears_what(
    drivers: Drivers, socket: FakeCoordinator, resource: str, code: int
) -> None:
    refusal = Refusal(grpc.StatusCode.PERMISSION_DENIED, "may not", "AUTHORIZATION_FAILED")
    socket.script.refusals = [Refusal(refusal.code, "may not", refusal.reason, None, resource)]
    consumer = drivers.make_with(config(socket.address, counted()))
    consumer.subscribe(["t"])
    with pytest.raises(KafkaException, match="may not") as caught:
        consumer.poll(10)
    assert caught.value.args[0].code() == code
    socket.stream()
    # Once the rules allow it, nothing else is needed.
    next_stream(consumer, socket)


@pytest.mark.parametrize("raised", [RuntimeError("no luck"), ValueError("no luck")])
def test_a_callback_that_fails_is_told_and_asked_again(
    drivers: Drivers, socket: FakeCoordinator, raised: Exception
) -> None:
    failures = [raised]

    def callback(_: str) -> tuple[str, float]:
        if failures:
            raise failures.pop()
        return "t", FOREVER

    consumer = drivers.make_with(config(socket.address, callback))
    consumer.subscribe(["t"])
    with pytest.raises(KafkaException, match="no luck") as caught:
        consumer.poll(10)
    assert caught.value.args[0].code() == KafkaError._AUTHENTICATION
    assert next_stream(consumer, socket).metadata["authorization"] == "Bearer t"


def test_an_answer_that_is_no_token_is_told_without_it(
    drivers: Drivers, socket: FakeCoordinator
) -> None:
    consumer = drivers.make_with(config(socket.address, lambda _: ("s3cret\n", FOREVER)))
    consumer.subscribe(["t"])
    with pytest.raises(KafkaException, match="visible characters") as caught:
        consumer.poll(10)
    assert "s3cret" not in str(caught.value)
    assert socket.streams_seen == []


def test_a_thread_that_can_not_be_started_is_started_later(
    socket: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    heard: list[KafkaError] = []
    consumer = ShareConsumer(config(socket.address, counted()) | {"error_cb": heard.append})
    with consumer:
        with monkeypatch.context() as patch:
            patch.setattr("sharecoord_sdk._sync.timers.start", refuse)
            consumer.subscribe(["t"])
            assert consumer.poll(0.01).is_empty()
        assert "can't start new thread" in heard[0].str()
        next_stream(consumer, socket)


def test_a_consumer_that_is_dropped_takes_its_timer_along(socket: FakeCoordinator) -> None:
    consumer = ShareConsumer(config(socket.address, counted(3600)))
    consumer.subscribe(["t"])
    next_stream(consumer, socket)
    tokens = consumer._slot.tokens
    timer = tokens._timer
    assert timer is not None
    gone = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert gone() is None
    timer.join(10)
    assert not timer.is_alive()


def test_no_log_error_or_event_shows_a_token(
    drivers: Drivers, socket: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[KafkaError] = []
    socket.script.refusals = [ENDED] * 2
    settings = config(socket.address, lambda _: ("s3cret", FOREVER))
    with caplog.at_level("DEBUG"):
        consumer = drivers.make_with({**settings, "error_cb": heard.append})
        consumer.subscribe(["t"])
        with pytest.raises(KafkaException) as caught:
            consumer.poll(10)
        for _ in range(2):
            socket.stream()
        stream = next_stream(consumer, socket)
        stream.send(make_batch([b"a"]))
        assert len(consumer.poll(10)) == 1
        stream.end(Refusal(grpc.StatusCode.UNAVAILABLE, "away"))
        next_stream(consumer, socket)
        consumer.close()
    said = (caplog.text, str(caught.value), repr(inner(consumer)._config), *map(str, heard))
    assert "joining again" in caplog.text
    assert not any("s3cret" in text for text in said)


# -- loops ----------------------------------------------------------------------------------------


def test_an_async_callback_runs_in_the_loop(drivers: Drivers, socket: FakeCoordinator) -> None:
    if drivers.kind == "sync":
        with pytest.raises(TypeError, match="AsyncShareConsumer"):
            drivers.make_with(config(socket.address, _token))
        return
    consumer = drivers.make_with(config(socket.address, _token))
    consumer.subscribe(["t"])
    assert socket.stream().metadata["authorization"] == "Bearer async"


async def _token(_: str) -> tuple[str, float]:
    await asyncio.sleep(0)
    return "async", FOREVER


def test_a_callback_that_returns_something_to_await(
    drivers: Drivers, socket: FakeCoordinator
) -> None:
    consumer = drivers.make_with(config(socket.address, lambda text: _token(text)))
    consumer.subscribe(["t"])
    if drivers.kind == "sync":
        with pytest.raises(KafkaException, match="AsyncShareConsumer"):
            consumer.poll(10)
    else:
        assert socket.stream().metadata["authorization"] == "Bearer async"


async def test_a_loop_goes_on_while_a_plain_callback_blocks(socket: FakeCoordinator) -> None:
    loop, go_on = asyncio.get_running_loop(), threading.Event()

    def callback(_: str) -> tuple[str, float]:
        # The loop ends the wait of this thread, which it could not if it waited itself.
        loop.call_soon_threadsafe(go_on.set)
        assert go_on.wait(30)
        return "t", FOREVER

    async with AsyncShareConsumer(config(socket.address, callback)) as consumer:
        await consumer.subscribe(["t"])
        stream = await asyncio.to_thread(socket.stream)
    assert stream.metadata["authorization"] == "Bearer t"


async def test_a_consumer_is_closed_while_its_async_callback_hangs(socket: FakeCoordinator) -> None:
    ended = asyncio.Event()

    async def callback(_: str) -> tuple[str, float]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "t", FOREVER

    consumer = AsyncShareConsumer(config(socket.address, callback))
    await consumer.subscribe(["t"])
    assert (await consumer.poll(0.05)).is_empty()
    await consumer.close()
    assert ended.is_set()
