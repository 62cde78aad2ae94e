"""What a consumer shows, and when: without a network, on a clock that the test moves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sharecoord_sdk import KafkaError, KafkaException
from sharecoord_sdk._core.config import read_config
from sharecoord_sdk._core.core import Arrival
from sharecoord_sdk._core.credentials import BACKOFF_MAX_S, RENEW_MIN_S, BearerToken, Tokens
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._tokens import read_answer

from tests.sdk.world import World, take_notices

OAUTH = {
    "bootstrap_servers": "unix:/nowhere",
    "security_protocol": "sasl_plaintext",
    "sasl_mechanisms": "OAUTHBEARER",
    "oauth_cb": print,
    "reconnect_backoff_ms": 100,
}
ENDED = StreamFailure("UNAUTHENTICATED", "the token has ended", "UNAUTHENTICATED")


def oauth_world(**more: Any) -> World:
    return World(**{**OAUTH, **more})


def give(world: World, outcome: BearerToken | Exception) -> None:
    """A fetch brings something."""
    tokens = world.core.credentials.tokens
    assert tokens is not None
    assert world.core.fetch_token_at <= world.now
    tokens.began(world.now)
    assert world.core.fetch_token_at == math.inf
    world.core.arrived(Arrival(0, outcome, world.now), world.now)


def joined_with(world: World, token: str = "one", life_s: float = 100.0) -> None:
    world.core.subscribe(["t"], world.now)
    world.drive()
    assert world.opened == []
    give(world, BearerToken(token, life_s))
    world.drive()
    world.receive(joined=service_pb.Joined(lock_duration_ms=30_000))
    assert len(world.opened) == 1


# -- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_renewed_at_four_fifths_of_its_life() -> None:
    tokens = Tokens(0.1)
    assert tokens.text(0.0) is None
    assert tokens.fetch_at == -math.inf
    tokens.began(10.0)
    tokens.ended(BearerToken("one", 100.0), 12.0)
    # From when it was asked for: that is when its issuer's clock was read, at the earliest.
    assert tokens.fetch_at == 90.0
    assert tokens.text(109.9) == "one"
    assert tokens.text(110.0) is None


def test_a_token_of_a_moment_is_not_asked_for_without_end() -> None:
    tokens = Tokens(0.1)
    tokens.began(0.0)
    tokens.ended(BearerToken("one", 0.01), 0.0)
    assert tokens.fetch_at == RENEW_MIN_S


def test_failures_back_off_and_the_old_token_serves_on() -> None:
    tokens = Tokens(0.1)
    tokens.began(0.0)
    tokens.ended(BearerToken("one", 100.0), 0.0)
    waits = []
    for _ in range(40):
        tokens.began(80.0)
        tokens.ended(RuntimeError(), 80.0)
        waits.append(tokens.fetch_at - 80.0)
        assert tokens.text(80.0) == "one"
    assert waits[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert waits[-1] == BACKOFF_MAX_S
    tokens.began(90.0)
    tokens.ended(BearerToken("two", 100.0), 90.0)
    assert tokens.text(180.0) == "two"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (None, "not NoneType"),
        (("t",), "oauth_cb must return"),
        (("t", 1e12, "p", {}, 5), "oauth_cb must return"),
        ((b"t", 1e12), "a str and a number"),
        (("t", "1e12"), "a str and a number"),
        (("t", True), "a str and a number"),
        (("", 1e12), "visible characters of ASCII"),
        (("two words", 1e12), "visible characters of ASCII"),
        (("s3cret\r\nx: y", 1e12), "visible characters of ASCII"),
        (("s3cretä", 1e12), "visible characters of ASCII"),
        (("s3cret" * 10_000, 1e12), "1 to 15000 visible"),
        (("s3cret", 1.0), r"ended \d+ s ago"),
        (("s3cret", math.nan), "ended nan s ago"),
    ],
)
def test_answers_of_a_callback_that_are_no_token(answer: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text) as caught:
        read_answer(answer)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "answer", [("t", 1e12), ["t", 1e12, "me"], ("t", math.inf, "me", {"a": 1})]
)
def test_answers_of_a_callback(answer: Any) -> None:
    assert read_answer(answer).text == "t"


# -- a stream -------------------------------------------------------------------------------------


def test_a_stream_waits_for_its_token_and_shows_it() -> None:
    world = oauth_world()
    world.core.subscribe(["t"], world.now)
    world.drive()
    give(world, BearerToken("one", 100.0))
    connection = world.core.connect(world.now)
    assert connection is not None
    assert connection.metadata == (("authorization", "Bearer one"),)
    assert "one" not in repr(connection)
    assert "one" not in repr(BearerToken("one", 1.0))


def test_no_token_is_fetched_before_somebody_subscribes() -> None:
    world = oauth_world()
    world.drive()
    assert world.core.fetch_token_at == math.inf


def test_a_new_token_is_shown_on_the_stream_alone_and_once() -> None:
    world = oauth_world()
    joined_with(world)
    world.now += 80
    give(world, BearerToken("two", 100.0))
    world.sent.clear()
    world.drive()
    world.drive()
    assert world.sent == [service_pb.ConsumeRequest(authorization="Bearer two")]
    assert len(world.opened) == 1


def test_the_same_token_again_is_not_shown_again() -> None:
    world = oauth_world()
    joined_with(world)
    world.now += 80
    give(world, BearerToken("one", 100.0))
    world.sent.clear()
    world.drive()
    assert world.sent == []


def test_a_token_that_comes_after_the_leave_is_not_shown() -> None:
    world = oauth_world()
    joined_with(world)
    world.core.begin_close(world.now)
    world.drive()
    tokens = world.core.credentials.tokens
    assert tokens is not None
    tokens.ended(BearerToken("two", 100.0), world.now)
    world.core.show_new_token(world.now)
    assert world.sent[-1].leave
    assert world.core.take_outbox() == []


def test_a_coordinator_of_an_older_release_ends_the_stream_and_is_joined_at_once() -> None:
    world = oauth_world()
    joined_with(world)
    world.now += 80
    give(world, BearerToken("two", 100.0))
    world.drive()
    world.now += 20
    world.fail(ENDED)
    world.drive()
    assert len(world.opened) == 2
    assert world.core.link.retry_at == world.now
    world.core.raise_error()


def test_an_ended_token_is_replaced_once_and_without_a_word_to_the_application() -> None:
    world = oauth_world()
    joined_with(world)
    world.now += 10
    world.fail(ENDED)
    world.drive()
    assert len(world.opened) == 1
    give(world, BearerToken("two", 100.0))
    world.drive()
    assert len(world.opened) == 2
    world.core.raise_error()
    # This one is fresh: somebody must do something.
    world.fail(ENDED)
    with pytest.raises(KafkaException, match="the token has ended") as caught:
        world.core.raise_error()
    error = caught.value.args[0]
    assert error.code() == KafkaError._AUTHENTICATION
    assert (error.fatal(), error.retriable()) == (False, False)
    # Neither the coordinator nor the issuer is asked at once.
    assert world.core.link.retry_at > world.now
    assert world.core.fetch_token_at > world.now


def test_streams_that_end_again_and_again_do_not_hammer() -> None:
    world = oauth_world()
    joined_with(world)
    waits = []
    for number in range(5):
        world.fail(ENDED)
        waits.append(world.core.link.retry_at - world.now)
        world.now = world.core.link.retry_at
        give(world, BearerToken(f"t{number}", 100.0))
        world.drive()
        world.receive(joined=service_pb.Joined(lock_duration_ms=30_000))
    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.5])


def test_a_joined_stream_whose_certificate_ended_is_joined_again_once() -> None:
    world = World()
    world.join()
    world.now += 10
    world.fail(ENDED)
    world.drive()
    assert len(world.opened) == 2
    world.core.raise_error()
    world.fail(ENDED)
    with pytest.raises(KafkaException):
        world.core.raise_error()


def test_waits_of_the_refused_grow_to_half_a_minute() -> None:
    world = World()
    world.core.subscribe(["t"], world.now)
    waits = []
    for _ in range(8):
        world.drive()
        world.fail(StreamFailure("PERMISSION_DENIED", "no", "AUTHORIZATION_FAILED"))
        waits.append(world.core.link.retry_at - world.now)
        world.now = world.core.link.retry_at
    # Half of it fixed, half chance; here chance is nothing.
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ("", KafkaError.GROUP_AUTHORIZATION_FAILED),
        ("group:g", KafkaError.GROUP_AUTHORIZATION_FAILED),
        ("topic:t", KafkaError.TOPIC_AUTHORIZATION_FAILED),
        ("moon:m", KafkaError.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_what_may_not_be_used_says_which_code(resource: str, code: int) -> None:
    world = World()
    world.join()
    refusal = StreamFailure("PERMISSION_DENIED", "no", "AUTHORIZATION_FAILED", None, resource)
    world.fail(refusal)
    with pytest.raises(KafkaException) as caught:
        world.core.raise_error()
    assert caught.value.args[0].code() == code
    assert not caught.value.args[0].fatal()


@pytest.mark.parametrize("reason", ["QUOTA_EXCEEDED", "KEYS_UNAVAILABLE"])
def test_what_passes_by_itself_is_waited_for(reason: str) -> None:
    world = World()
    world.join()
    code = "RESOURCE_EXHAUSTED" if reason == "QUOTA_EXCEEDED" else "UNAVAILABLE"
    world.fail(StreamFailure(code, "later", reason, 700))
    world.core.raise_error()
    assert world.core.link.retry_at == world.now + 0.7
    world.now += 20
    world.core.tick(world.now)
    errors = [notice.error.code() for notice in take_notices(world.core) if notice.error]
    assert errors == [
        {
            "QUOTA_EXCEEDED": KafkaError.THROTTLING_QUOTA_EXCEEDED,
            "KEYS_UNAVAILABLE": KafkaError.COORDINATOR_NOT_AVAILABLE,
        }[reason]
    ]


# -- fetches that fail ----------------------------------------------------------------------------


def test_a_failed_fetch_is_the_next_polls_error_while_there_is_no_token() -> None:
    world = oauth_world()
    world.core.subscribe(["t"], world.now)
    world.drive()
    give(world, RuntimeError("no luck"))
    with pytest.raises(KafkaException, match="RuntimeError: no luck") as caught:
        world.core.raise_error()
    assert caught.value.args[0].code() == KafkaError._AUTHENTICATION
    assert world.core.fetch_token_at == pytest.approx(world.now + 0.1)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("away"),
        KafkaException(KafkaError(KafkaError._AUTHENTICATION, "away", retriable=True)),
    ],
)
def test_a_network_that_fails_is_told_and_waited_for(error: Exception) -> None:
    world = oauth_world()
    world.core.subscribe(["t"], world.now)
    world.drive()
    give(world, error)
    world.core.raise_error()
    (notice,) = take_notices(world.core)
    assert notice.error is not None
    assert notice.error.retriable()
    assert "away" in notice.text
    assert "another one is asked for" in notice.text


def test_a_failed_renewal_is_told_and_the_stream_goes_on() -> None:
    world = oauth_world()
    joined_with(world)
    take_notices(world.core)
    world.now += 80
    give(world, RuntimeError("no luck"))
    world.drive()
    world.core.raise_error()
    (notice,) = take_notices(world.core)
    assert "no luck" in notice.text
    assert "the old one serves until it ends" in notice.text
    assert world.core.link.is_up


def test_a_callback_that_does_not_return_is_told_once() -> None:
    world = oauth_world(socket_connection_setup_timeout_ms=2000)
    world.core.subscribe(["t"], world.now)
    world.drive()
    tokens = world.core.credentials.tokens
    assert tokens is not None
    tokens.began(world.now)
    for _ in range(3):
        world.now += 1.5
        world.drive()
    (notice,) = take_notices(world.core)
    assert "is at it for 3 s" in notice.text
    assert notice.error is not None
    assert notice.error.code() == KafkaError._AUTHENTICATION


def test_credentials_do_not_follow_a_drain_to_an_address_without_tls() -> None:
    world = oauth_world()
    joined_with(world)
    drain = service_pb.DrainNotice(grace_ms=0, addresses=["elsewhere:7070", "unix:/next"])
    world.receive(drain=drain)
    world.drive()
    assert world.opened == ["unix:/nowhere", "unix:/next"]


# -- settings -------------------------------------------------------------------------------------

SECURE = {"group.id": "g", "security.protocol": "sasl_ssl", "sasl.mechanisms": "OAUTHBEARER"}
PREFIX = "sasl.oauthbearer"
OIDC = {
    **SECURE,
    f"{PREFIX}.method": "oidc",
    f"{PREFIX}.client.id": "me",
    f"{PREFIX}.client.secret": "s3cret",
    f"{PREFIX}.token.endpoint.url": "https://id.example/token",
}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({f"{PREFIX}.client.id": ""}, "client.id` is mandatory"),
        ({f"{PREFIX}.client.secret": ""}, "client.secret` is mandatory"),
        ({f"{PREFIX}.token.endpoint.url": ""}, "token.endpoint.url` is mandatory"),
        ({f"{PREFIX}.token.endpoint.url": "http://id.example/token"}, "https only"),
        ({f"{PREFIX}.token.endpoint.url": "http://127.0.0.1.evil.example/"}, "https only"),
        ({f"{PREFIX}.token.endpoint.url": "file:///etc/passwd"}, "no https://… address"),
        ({f"{PREFIX}.token.endpoint.url": "https://h:x/"}, "is no address"),
        ({f"{PREFIX}.token.endpoint.url": "https://u:s3cret@h/"}, "names a user"),
        ({f"{PREFIX}.token.endpoint.url": "https:///token"}, "no https://… address"),
        ({"https.ca.location": "/nowhere.pem"}, "https.ca.location '/nowhere.pem': No such file"),
        ({"https.ca.pem": "nothing"}, "https.ca.pem: no PEM"),
        ({"https.ca.pem": "x", "https.ca.location": "y"}, "mutually exclusive"),
        ({f"{PREFIX}.client.secret": "s3cret\x00"}, "NUL character"),
        ({f"{PREFIX}.client.secret": "s3cret\udc80"}, "lone surrogate"),
    ],
)
def test_settings_of_a_provider_that_can_not_be(change: dict[str, str], text: str) -> None:
    with pytest.raises((ValueError, KafkaException), match=text) as caught:
        read_config(({**OIDC, **change},), {})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "127.9.9.9"])
def test_a_provider_on_this_machine_may_be_asked_without_tls(host: str) -> None:
    url = {f"{PREFIX}.token.endpoint.url": f"http://{host}:80/token"}
    sasl = read_config(({**OIDC, **url},), {}).sasl
    assert sasl is not None
    assert sasl.oidc is not None


def test_the_other_names_of_client_and_secret() -> None:
    names = {
        f"{PREFIX}.client.credentials.{name}": OIDC[f"{PREFIX}.{name}"]
        for name in ("client.id", "client.secret")
    }
    rest = {
        k: v for k, v in OIDC.items() if k not in (f"{PREFIX}.client.id", f"{PREFIX}.client.secret")
    }
    assert read_config(({**rest, **names},), {}).sasl == read_config((OIDC,), {}).sasl


def test_no_secret_is_in_a_repr() -> None:
    secrets = {
        "ssl.key.password": "s3cret",
        "sasl.oauthbearer.config": "s3cret",
        "ssl.certificate.pem": "-----BEGIN CERTIFICATE-----",
        "ssl.key.pem": "-----BEGIN PRIVATE KEY----- s3cret",
    }
    for more in (
        OIDC,
        {**SECURE, "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": "s3cret"},
    ):
        assert "s3cret" not in repr(read_config(({**secrets, **more},), {}))


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.pem", "ssl.key.password"])
def test_no_secret_is_in_an_error_about_it(name: str) -> None:
    with pytest.raises(KafkaException, match=name) as caught:
        read_config(({"group.id": "g", name: "s3cret\x00"},), {})
    assert "s3cret" not in str(caught.value)


def test_credentials_go_to_a_unix_socket_without_tls() -> None:
    plain = {
        "group.id": "g",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    assert read_config(({**plain, "bootstrap.servers": "unix:/s"},), {}).sasl is not None
    for address in ("unix:/s,localhost:7070", "127.0.0.1:7070"):
        with pytest.raises(KafkaException, match="over TLS only"):
            read_config(({**plain, "bootstrap.servers": address},), {})
