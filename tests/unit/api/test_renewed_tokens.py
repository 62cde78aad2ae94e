"""A consumer of the SDK and a server that checks tokens: a stream outlives its first token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sharecoord_sdk import AsyncShareConsumer, KafkaError, KafkaException

from sharecoord.api.grpc.access import Access
from sharecoord.api.grpc.server import bind, make_server
from sharecoord.config.endpoints import UnixAddress
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.security.authenticator import Authenticator
from sharecoord.security.files import WatchedFiles
from sharecoord.security.tokens import SETTING, create_token, read_tokens
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import World, running

START_MS = 1_900_000_000_000
HOUR_MS = 3_600_000
DEADLINE_S = 30


class Bench:
    """A coordinator whose clock stands still until a test moves it."""

    def __init__(self, folder: Path) -> None:
        self.tokens = folder / "tokens.yaml"
        self.address = f"unix:{folder / 's'}"
        self.now_ms = START_MS
        self.coordinator: Coordinator
        self.files: WatchedFiles[Any]

    def create(self, name: str, life_ms: int) -> str:
        return create_token(self.tokens, name, ends_ms=self.now_ms + life_ms)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        log = FakeLog()
        log.create("t", 1)
        async with running(World(log)) as coordinator, asyncio.timeout(DEADLINE_S):
            self.coordinator = coordinator
            guard = coordinator.context.guard
            guard.now_ms = lambda: self.now_ms
            self.files = WatchedFiles({SETTING: str(self.tokens)}, read_tokens)
            authenticator = Authenticator(
                tokens=self.files, must_prove=True, now_ms=guard.now_ms, sleep=_at_once
            )
            guard.holds = authenticator.holds
            access = Access(authenticator, guard, certificates=False)
            server, _ = make_server(
                coordinator, access, request_bytes_max=1 << 20, shares_port=False
            )
            bind(server, UnixAddress(self.address.removeprefix("unix:")), None)
            await server.start()
            try:
                yield
            finally:
                await server.stop(None)

    def consumer(self, *answers: tuple[str, float]) -> AsyncShareConsumer:
        """A consumer whose callback gives these tokens; lives in seconds."""
        coming = iter(answers)

        def callback(_: str) -> tuple[str, float]:
            token, life_s = next(coming)
            return token, time.time() + life_s

        conf: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "group.id": "g",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": callback,
            "reconnect.backoff.ms": 1,
        }
        return AsyncShareConsumer(conf)

    def session(self) -> Any:
        """The one member's session, if there is one."""
        groups = self.coordinator.groups
        return next((s for group in groups.values() for s in group.sessions.values()), None)


async def _at_once(_: float) -> None:
    pass


async def until(what: Callable[[], Any], consumer: AsyncShareConsumer) -> Any:
    """Polls until something is true, and returns it."""
    while not (found := what()):
        assert (await consumer.poll(0.02)).is_empty()
    return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_token_that_is_shown_in_time_keeps_the_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharecoord_sdk._core.credentials.RENEW_MIN_S", 0.0)
    first = bench.create("worker", HOUR_MS)
    second = bench.create("worker", 2 * HOUR_MS)
    async with bench.serving(), bench.consumer((first, 0.3), (second, 1e9)) as consumer:
        await consumer.subscribe(["t"])
        session = await until(bench.session, consumer)
        channel = session.channel
        renewed_ms = START_MS + 2 * HOUR_MS
        await until(lambda: session.caller.identity.ends_ms == renewed_ms, consumer)
        bench.now_ms += HOUR_MS + 1
        bench.coordinator.groups.admission.look()
        assert session.channel is channel
        assert bench.session() is session
        # The second one ends as well, and nobody has another.
        bench.now_ms += HOUR_MS
        bench.coordinator.groups.admission.look()
        assert bench.session() is None


async def test_a_token_that_has_ended_is_replaced_at_once(bench: Bench) -> None:
    first = bench.create("worker", HOUR_MS)
    second = bench.create("worker", 2 * HOUR_MS)
    async with bench.serving(), bench.consumer((first, 1e9), (second, 1e9)) as consumer:
        await consumer.subscribe(["t"])
        await until(bench.session, consumer)
        bench.now_ms += HOUR_MS + 1
        bench.coordinator.groups.admission.look()
        session = await until(bench.session, consumer)
        assert session.caller.identity.ends_ms == START_MS + 2 * HOUR_MS


async def test_a_token_of_somebody_else_ends_the_stream(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharecoord_sdk._core.credentials.RENEW_MIN_S", 0.0)
    mine, other = bench.create("worker", HOUR_MS), bench.create("other", HOUR_MS)
    async with bench.serving(), bench.consumer((mine, 0.3), (other, 1e9)) as consumer:
        await consumer.subscribe(["t"])
        with pytest.raises(KafkaException, match="another principal") as caught:
            await consumer.poll(20)
        assert caught.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED


async def test_a_wrong_token_is_told(bench: Bench) -> None:
    bench.create("worker", HOUR_MS)
    async with bench.serving(), bench.consumer(("wr0ng", 1e9), ("wr0ng", 1e9)) as consumer:
        await consumer.subscribe(["t"])
        with pytest.raises(KafkaException, match="is not good here") as caught:
            await consumer.poll(20)
        assert caught.value.args[0].code() == KafkaError._AUTHENTICATION
        assert "wr0ng" not in str(caught.value)
