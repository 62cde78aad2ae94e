"""A broker: one connection for all, back-off, log-in, and log-in again under load."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.api_versions.v0.request import ApiVersionsRequest as ApiVersionsRequest0
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v4.request import MetadataRequest
from kio.schema.metadata.v4.response import MetadataResponse
from kio.schema.sasl_authenticate import v1, v2
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.primitive import i32Timedelta, i64Timedelta

from sharecoord import __version__
from sharecoord.errors import InvalidConfigError, KafkaUnavailableError, UnauthenticatedError
from sharecoord.kafka.wire import connection
from sharecoord.kafka.wire.broker import Broker, BrokerOptions
from sharecoord.kafka.wire.connection import Connection, ConnectionOptions
from sharecoord.kafka.wire.fields import read_tags
from sharecoord.kafka.wire.security import PLAINTEXT, Security, security_of
from sharecoord.kafka.wire.tokens import Token
from tests.unit.kafka.wire.fake_broker import CLOSE, SILENCE, FakeBroker, Hours, Request, hours

OPTIONS = BrokerOptions(client_id="tester", timeout_s=30.0, backoff_s=1.0, backoff_max_s=8.0)
PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "wonder",
}
FETCH = 1


def metadata(request: Request) -> MetadataResponse:
    return MetadataResponse(
        throttle_time=i32Timedelta(timedelta(0)),
        brokers=(),
        cluster_id=f"link-{request.link.number}",
        controller_id=-1,  # type: ignore[arg-type]
        topics=(),
    )


def ask(broker: Broker) -> Any:
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    return broker.call(request, MetadataResponse)


def accepts(fake: FakeBroker, *, lifetime_s: float = 0.0, error: str = "") -> None:
    """SASL whose every message is taken, or refused."""

    def answer(request: Request) -> Any:
        version: Any = v2 if request.version == 2 else v1
        code = ErrorCode.sasl_authentication_failed if error else ErrorCode.none
        return version.SaslAuthenticateResponse(
            error_code=code,
            error_message=error or None,
            auth_bytes=b"",
            session_lifetime=i64Timedelta(timedelta(seconds=lifetime_s)),
        )

    fake.on(SaslHandshakeRequest, lambda request: shaken())
    fake.on(v2.SaslAuthenticateRequest, answer)


def shaken(error: ErrorCode = ErrorCode.none, *mechanisms: str) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error, mechanisms=mechanisms)


def sasl_messages(fake: FakeBroker) -> list[bytes]:
    return [each.entity().auth_bytes for each in fake.requests if each.key == 36]


@pytest.fixture
async def fake() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as found:
        found.on(MetadataRequest, metadata)
        yield found


@pytest.fixture
async def clock() -> AsyncIterator[Hours]:
    with hours() as found:
        yield found


def linked(fake: FakeBroker, security: Security = PLAINTEXT) -> Broker:
    return Broker(fake.endpoint, security, OPTIONS)


async def turns(count: int = 20) -> None:
    """Lets the loop take in what is there."""
    for _ in range(count):
        await asyncio.sleep(0)


# -- calls ----------------------------------------------------------------------------------------


async def test_a_call_connects_and_asks_for_versions_first(fake: FakeBroker) -> None:
    broker = linked(fake)
    found = await ask(broker)
    assert found.cluster_id == "link-0"
    assert broker.versions[FETCH] == (4, 18)
    hello = fake.requests[0].entity()
    assert (hello.client_software_name, hello.client_software_version) == (
        "sharecoord",
        __version__,
    )
    assert [each.client_id for each in fake.requests] == ["tester", "tester"]
    broker.close()


async def test_all_who_call_share_one_connection(fake: FakeBroker) -> None:
    broker = linked(fake)
    found = await asyncio.gather(*(ask(broker) for _ in range(20)))
    assert {each.cluster_id for each in found} == {"link-0"}
    assert len(fake.links) == 1
    broker.close()


async def test_who_calls_waits_while_a_broker_owes_many_answers(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REQUESTS_MAX", 2)
    go, most = asyncio.Event(), 0

    async def held(request: Request) -> MetadataResponse:
        nonlocal most
        await go.wait()
        most = max(most, len(open_one._waiting))
        return metadata(request)

    fake.on(MetadataRequest, held)
    broker = linked(fake)
    open_one = await broker.connected()
    calls = [asyncio.ensure_future(ask(broker)) for _ in range(7)]
    await fake.seen(MetadataRequest)
    await turns()
    go.set()
    await asyncio.gather(*calls)
    assert most == 2
    broker.close()


async def test_a_broker_that_knows_old_versions_alone(fake: FakeBroker) -> None:
    fake.offered[18] = (0, 2)
    broker = linked(fake)
    await ask(broker)
    assert fake.count(ApiVersionsRequest0) == 2
    assert broker.versions == fake.offered
    broker.close()


async def test_a_raw_call_has_the_answer_behind_the_tags(fake: FakeBroker) -> None:
    fake.on(FETCH, lambda request: b"\1\0\2??answer")
    broker = linked(fake)
    answer = await broker.call_raw(FETCH, 12, b"body", timeout_s=5.0)
    assert bytes(answer) == b"answer"
    assert fake.requests[-1].body == b"body"
    broker.close()


@given(st.binary(max_size=40))
def test_tags_end_within_the_answer_or_are_refused(data: bytes) -> None:
    try:
        assert 0 < read_tags(memoryview(data), 0)[1] <= len(data)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("answer", [b"", b"\xff\xff\xff\xff\xff\xff", b"\1\0\x7f??", b"\x81"])
async def test_an_answer_that_can_not_be_read_ends_the_connection(
    fake: FakeBroker, answer: bytes
) -> None:
    fake.on(FETCH, lambda request: answer)
    fake.on(MetadataRequest, lambda request: answer)
    broker = Broker(fake.endpoint, PLAINTEXT, BrokerOptions(backoff_s=0.0))
    for call in (lambda: broker.call_raw(FETCH, 12, b"", timeout_s=5.0), lambda: ask(broker)):
        used = await broker.connected()
        with pytest.raises(KafkaUnavailableError, match="can not be read"):
            await call()
        assert not used.is_open
    broker.close()


async def test_a_closed_broker_answers_nobody(fake: FakeBroker) -> None:
    fake.on(MetadataRequest, lambda request: SILENCE)
    broker = linked(fake)
    waits = asyncio.ensure_future(ask(broker))
    await fake.seen(MetadataRequest)
    broker.close()
    for each in (waits, ask(broker)):
        with pytest.raises(KafkaUnavailableError, match="closed by us"):
            await each


async def test_close_ends_an_attempt_to_connect(fake: FakeBroker) -> None:
    fake.on(ApiVersionsRequest0, lambda request: SILENCE)
    broker = linked(fake)
    waits = asyncio.ensure_future(ask(broker))
    await fake.seen(ApiVersionsRequest0)
    broker.close()
    with pytest.raises(KafkaUnavailableError, match="closed by us"):
        await waits


# -- connecting -----------------------------------------------------------------------------------


async def test_all_who_wait_get_the_error_of_one_attempt(fake: FakeBroker) -> None:
    await fake.stop()
    broker = linked(fake)
    found = await asyncio.gather(*(ask(broker) for _ in range(5)), return_exceptions=True)
    assert {type(each) for each in found} == {KafkaUnavailableError}
    assert len({id(each) for each in found}) == 1
    assert f"can not connect to {fake.endpoint}" in str(found[0])
    broker.close()
    await fake.start()


async def test_attempts_stand_further_and_further_apart(fake: FakeBroker, clock: Hours) -> None:
    fake.on(ApiVersionsRequest0, lambda request: CLOSE)
    broker = linked(fake)
    for backoff_s in (0.0, 1.0, 2.0, 4.0, 8.0, 8.0):
        waits = asyncio.ensure_future(ask(broker))
        if backoff_s:
            clock.forward(backoff_s * 0.74)
            await turns()
            assert not waits.done()
            clock.forward(backoff_s * 0.77)
        with pytest.raises(KafkaUnavailableError, match="before it answered anything"):
            await waits
    assert len(fake.links) == 6
    broker.close()


async def test_an_answer_to_a_call_ends_the_back_off(fake: FakeBroker, clock: Hours) -> None:
    broker = linked(fake)
    for attempt in range(4):
        clock.forward(1.51)
        assert (await ask(broker)).cluster_id == f"link-{attempt}"
        used = await broker.connected()
        fake.drop()
        while used.is_open:  # noqa: ASYNC110 - the other end's last word is on its way
            await asyncio.sleep(0)
    broker.close()


async def test_who_goes_away_does_not_end_the_attempt_of_the_others(fake: FakeBroker) -> None:
    go = asyncio.Event()
    versions = fake._versions

    async def slow(request: Request) -> Any:
        await go.wait()
        return versions(request)

    fake.on(ApiVersionsRequest0, slow)
    broker = linked(fake)
    first, second = asyncio.ensure_future(ask(broker)), asyncio.ensure_future(ask(broker))
    await fake.seen(ApiVersionsRequest0)
    first.cancel()
    go.set()
    assert (await second).cluster_id == "link-0"
    broker.close()


async def test_a_connection_that_ends_at_once_is_told_to_who_calls(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = linked(fake)
    monkeypatch.setattr(Connection, "trust", Connection.close)
    with pytest.raises(KafkaUnavailableError, match="was closed by us"):
        await ask(broker)
    broker.close()


async def test_a_broker_that_says_nothing_is_left(fake: FakeBroker, clock: Hours) -> None:
    fake.on(ApiVersionsRequest0, lambda request: SILENCE)
    broker = linked(fake)
    waits = asyncio.ensure_future(ask(broker))
    await fake.seen(ApiVersionsRequest0)
    clock.forward(30.1)
    with pytest.raises(KafkaUnavailableError, match=r"setup\.timeout\.ms|within 30 s"):
        await waits
    broker.close()


async def test_a_listener_that_wants_a_log_in_is_known_by_its_silence(fake: FakeBroker) -> None:
    fake.on(MetadataRequest, lambda request: CLOSE)
    broker = linked(fake)
    with pytest.raises(KafkaUnavailableError, match=r"wants a log-in.*=sasl_plaintext"):
        await ask(broker)
    broker.close()


# -- logging in -----------------------------------------------------------------------------------


async def test_plain_sends_name_and_password(fake: FakeBroker) -> None:
    accepts(fake)
    broker = linked(fake, security_of(PLAIN))
    await ask(broker)
    assert sasl_messages(fake) == [b"\0alice\0wonder"]
    assert [each.key for each in fake.requests] == [18, 17, 36, 3]
    broker.close()


async def test_a_broker_with_the_older_log_in(fake: FakeBroker) -> None:
    fake.offered[36] = (0, 1)
    accepts(fake)
    broker = linked(fake, security_of(PLAIN))
    await ask(broker)
    assert [each.version for each in fake.requests if each.key == 36] == [1]
    broker.close()


async def test_a_refusal_names_listener_mechanism_user_and_settings(fake: FakeBroker) -> None:
    accepts(fake, error="Authentication failed: \x07Invalid username")
    broker = linked(fake, security_of(PLAIN))
    with pytest.raises(UnauthenticatedError) as caught:
        await ask(broker)
    assert str(caught.value) == (
        f"the listener {fake.endpoint} (sasl_plaintext) refused PLAIN for the user alice:"
        " Authentication failed: Invalid username;"
        " check kafka.sasl.username, kafka.sasl.password"
    )
    broker.close()


async def test_a_mechanism_that_the_listener_does_not_have(fake: FakeBroker) -> None:
    answer = shaken(ErrorCode.unsupported_sasl_mechanism, "SCRAM-SHA-256", "OAUTHBEARER")
    fake.on(SaslHandshakeRequest, lambda request: answer)
    broker = linked(fake, security_of(PLAIN))
    with pytest.raises(UnauthenticatedError, match=r"mechanism=PLAIN; it takes SCRAM-SHA-256, OAU"):
        await ask(broker)
    broker.close()


async def test_a_listener_without_log_in(fake: FakeBroker) -> None:
    fake.on(SaslHandshakeRequest, lambda request: shaken(ErrorCode.illegal_sasl_state))
    broker = linked(fake, security_of(PLAIN))
    with pytest.raises(UnauthenticatedError, match=r"has no log-in: set .*protocol=plaintext"):
        await ask(broker)
    broker.close()


class ScramServer:
    """The broker's side of SCRAM, by the RFC and nothing else."""

    def __init__(self, fake: FakeBroker, password: str, *, iterations: int = 4096) -> None:
        self.password, self.iterations = password.encode(), iterations
        self.nonce_end, self.signature = "server", b""
        self._first = self._server_first = ""
        fake.on(SaslHandshakeRequest, lambda request: shaken())
        fake.on(v2.SaslAuthenticateRequest, self.answer)

    def answer(self, request: Request) -> Any:
        message = request.entity().auth_bytes.decode()
        if message.startswith("n,,"):
            self._first = message[3:]
            nonce = self._first.rpartition("r=")[2] + self.nonce_end
            salt = base64.b64encode(b"salt").decode()
            self._server_first = f"r={nonce},s={salt},i={self.iterations}"
            return self.said(self._server_first)
        final, _, proof = message.rpartition(",p=")
        salted = hashlib.pbkdf2_hmac("sha512", self.password, b"salt", self.iterations)
        client_key = self.mac(salted, "Client Key")
        text = f"{self._first},{self._server_first},{final}"
        stored = hashlib.sha512(client_key).digest()
        found = bytes(
            a ^ b for a, b in zip(base64.b64decode(proof), self.mac(stored, text), strict=True)
        )
        if hashlib.sha512(found).digest() != stored:
            return self.said("e=invalid-proof")
        signature = self.signature or self.mac(self.mac(salted, "Server Key"), text)
        return self.said("v=" + base64.b64encode(signature).decode())

    @staticmethod
    def mac(key: bytes, text: str) -> bytes:
        return hmac.digest(key, text.encode(), "sha512")

    @staticmethod
    def said(text: str) -> Any:
        return v2.SaslAuthenticateResponse(
            error_code=ErrorCode.none, error_message=None, auth_bytes=text.encode()
        )


def scram(password: str = "ｗｏｎｄｅｒª") -> Security:
    mechanism = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.password": password}
    return security_of({**PLAIN, **mechanism, "sasl.username": "al=i,ce"})


async def test_scram_proves_both_sides_and_prepares_nothing(fake: FakeBroker) -> None:
    server = ScramServer(fake, "ｗｏｎｄｅｒª")
    broker = linked(fake, scram())
    await ask(broker)
    assert server._first.startswith("n=al=3Di=2Cce,r=")
    broker.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"password": b"other"}, "the broker says invalid-proof"),
        ({"signature": b"forged"}, "does not know the password"),
        ({"iterations": 100}, "100 iterations; 4096 to 1000000 are taken"),
        ({"iterations": 2**31}, "2147483648 iterations"),
        ({"nonce_end": ""}, "does not continue ours"),
    ],
)
async def test_scram_with_somebody_else(
    fake: FakeBroker, change: dict[str, Any], said: str
) -> None:
    server = ScramServer(fake, "ｗｏｎｄｅｒª")
    vars(server).update(change)
    broker = linked(fake, scram())
    with pytest.raises(UnauthenticatedError, match=said):
        await ask(broker)
    assert not any(each.key == 3 for each in fake.requests)
    broker.close()


# -- log-in again ---------------------------------------------------------------------------------


async def test_a_session_is_renewed_between_requests_in_flight(
    fake: FakeBroker, clock: Hours
) -> None:
    accepts(fake, lifetime_s=100.0)
    go = asyncio.Event()

    async def held(request: Request) -> bytes:
        await go.wait()
        return b"\0held"

    fake.on(FETCH, held)
    broker = linked(fake, security_of(PLAIN))
    await ask(broker)
    clock.forward(84.0)
    await ask(broker)
    in_flight = asyncio.ensure_future(broker.call_raw(FETCH, 12, b"", timeout_s=500.0))
    await fake.seen(FETCH)
    clock.forward(1.1)
    later = [asyncio.ensure_future(ask(broker)) for _ in range(3)]
    await turns()
    go.set()
    assert bytes(await in_flight) == b"held"
    await asyncio.gather(*later)
    assert [each.key for each in fake.requests] == [18, 17, 36, 3, 3, 1, 17, 36, 3, 3, 3]
    assert len(fake.links) == 1
    broker.close()


async def test_sessions_are_never_renewed_twice_in_a_second(fake: FakeBroker, clock: Hours) -> None:
    accepts(fake, lifetime_s=0.5)
    broker = linked(fake, security_of(PLAIN))
    await ask(broker)
    clock.forward(0.9)
    await ask(broker)
    assert fake.count(SaslHandshakeRequest) == 1
    clock.forward(0.3)
    await ask(broker)
    assert fake.count(SaslHandshakeRequest) == 2
    broker.close()


async def test_a_refused_renewal_fails_all_and_connects_again(
    fake: FakeBroker, clock: Hours
) -> None:
    accepts(fake, lifetime_s=100.0)
    broker = linked(fake, security_of(PLAIN))
    await ask(broker)
    accepts(fake, error="gone")
    clock.forward(86.0)
    found = await asyncio.gather(ask(broker), ask(broker), return_exceptions=True)
    assert {type(each) for each in found} == {UnauthenticatedError}
    accepts(fake)
    assert (await ask(broker)).cluster_id == "link-1"
    broker.close()


async def test_without_a_new_token_the_old_session_serves_to_its_end(
    fake: FakeBroker, clock: Hours
) -> None:
    accepts(fake, lifetime_s=100.0)
    fails = False

    async def issue() -> Token:
        if fails:
            raise UnauthenticatedError("the provider says no")
        return Token("token", 50.0)

    security = security_of({**PLAIN, "sasl.mechanism": "OAUTHBEARER"}, issue)
    broker = linked(fake, security)
    await ask(broker)
    fails = True
    clock.forward(86.0)
    await ask(broker)
    clock.forward(13.0)
    await ask(broker)
    clock.forward(2.0)
    with pytest.raises(UnauthenticatedError, match="the provider says no"):
        await ask(broker)
    assert fake.count(SaslHandshakeRequest) == 1
    fails = False
    clock.forward(70.0)
    assert (await ask(broker)).cluster_id == "link-1"
    broker.close()
    security.close()


async def test_a_refused_token_is_said_in_the_broker_s_words(fake: FakeBroker) -> None:
    told = []

    def answer(request: Request) -> Any:
        told.append(request.entity().auth_bytes)
        last = told[-1] == b"\x01"
        return v2.SaslAuthenticateResponse(
            error_code=ErrorCode.sasl_authentication_failed if last else ErrorCode.none,
            error_message='{"status":"invalid_token"}' if last else None,
            auth_bytes=b"" if last else b'{"status":"invalid_token"}',
        )

    async def issue() -> Token:
        return Token("abc", 10.0, {"traceId": "7"})

    fake.on(SaslHandshakeRequest, lambda request: shaken())
    fake.on(v2.SaslAuthenticateRequest, answer)
    broker = linked(fake, security_of({**PLAIN, "sasl.mechanism": "OAUTHBEARER"}, issue))
    with pytest.raises(
        UnauthenticatedError, match=r"OAUTHBEARER: .*invalid_token.*oauthbearer\.\*"
    ):
        await ask(broker)
    assert told == [b"n,,\x01auth=Bearer abc\x01traceId=7\x01\x01", b"\x01"]
    broker.close()


# -- options --------------------------------------------------------------------------------------


def test_options_by_librdkafka_s_keys() -> None:
    found = BrokerOptions.of(
        {
            "client.id": "me",
            "socket.timeout.ms": 5000,
            "reconnect.backoff.ms": "50",
            "reconnect.backoff.max.ms": 900,
            "receive.message.max.bytes": 2_000_000,
            "socket.connection.setup.timeout.ms": "1500",
            "connections.max.idle.ms": 0,
            "broker.address.family": "v4",
            "socket.keepalive.enable": "true",
        }
    )
    assert (found.client_id, found.timeout_s, found.backoff_s, found.backoff_max_s) == (
        *("me", 5.0, 0.05),
        0.9,
    )
    assert found.connection == ConnectionOptions(
        answer_bytes_max=2_000_000, setup_timeout_s=1.5, idle_s=0.0, family=2, keepalive=True
    )
    assert BrokerOptions.of({}) == BrokerOptions()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("socket.timeout.ms", "soon"),
        ("socket.timeout.ms", 1),
        ("reconnect.backoff.ms", -1),
        ("receive.message.max.bytes", 2**31),
        ("broker.address.family", "v5"),
        ("socket.keepalive.enable", "perhaps"),
        ("client.id", "x" * 40_000),
    ],
)
def test_options_out_of_bounds_are_named(key: str, value: str | int) -> None:
    with pytest.raises(InvalidConfigError, match=rf"kafka\.{key}"):
        BrokerOptions.of({key: value})
