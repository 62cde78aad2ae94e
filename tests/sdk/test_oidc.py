"""Tokens of client credentials (RFC 6749, 4.4), from a real HTTP server on loopback."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sharecoord_sdk import KafkaError, KafkaException
from sharecoord_sdk._core.config import read_config
from sharecoord_sdk._core.credentials import BearerToken, OidcConfig
from sharecoord_sdk._oidc import ANSWER_BYTES_MAX, fetch

from tests.certificates import Authority
from tests.sdk.driver import Drivers
from tests.sdk.fake_coordinator import FakeCoordinator
from tests.unit.kafka.wire.token_endpoint import TokenEndpoint


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as found:
        yield found


def settings(endpoint: TokenEndpoint, **more: str) -> dict[str, str]:
    prefix = "sasl.oauthbearer"
    return {
        "bootstrap.servers": "unix:/nowhere",
        "group.id": "g",
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "OAUTHBEARER",
        f"{prefix}.method": "oidc",
        f"{prefix}.client.id": "me",
        f"{prefix}.client.secret": "s3cret",
        f"{prefix}.token.endpoint.url": endpoint.url,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def oidc(endpoint: TokenEndpoint, **more: str) -> OidcConfig:
    sasl = read_config((settings(endpoint, **more),), {}).sasl
    assert sasl is not None
    assert sasl.oidc is not None
    return sasl.oidc


def problem(config: OidcConfig) -> KafkaError:
    """The error of a fetch, which names the address and no secret."""
    with pytest.raises(KafkaException) as caught:
        fetch(config)
    error: KafkaError = caught.value.args[0]
    assert error.code() == KafkaError._AUTHENTICATION
    assert "s3cret" not in error.str()
    return error


def jwt(**claims: Any) -> str:
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{text}.signature"


def test_the_client_shows_its_secret_and_gets_a_token(endpoint: TokenEndpoint) -> None:
    endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": 300})
    assert fetch(oidc(endpoint, sasl_oauthbearer_scope="a b")) == BearerToken("abc", 300.0)
    (asked,) = endpoint.asked
    assert asked.form == "grant_type=client_credentials&scope=a+b"
    assert base64.b64decode(asked.authorization.removeprefix("Basic ")) == b"me:s3cret"


@pytest.mark.parametrize("life", ["300", 300, 300.0])
def test_ways_to_write_a_life(endpoint: TokenEndpoint, life: object) -> None:
    endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": life})
    assert fetch(oidc(endpoint)).life_s == 300.0
    assert endpoint.asked[0].form == "grant_type=client_credentials"


def test_without_expires_in_the_token_says_until_when(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharecoord_sdk._oidc.time.time", lambda: 1000.0)
    endpoint.answer = lambda: (200, {"access_token": jwt(exp=1600)})
    assert fetch(oidc(endpoint)).life_s == 600.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", "no access_token"),
        (b"[" * 100_000, "no access_token"),
        (b"[1]", "no access_token"),
        ({"access_token": 7}, "no access_token"),
        ({"access_token": "s3cret\r\nx: y", "expires_in": 5}, "no access_token"),
        ({"access_token": "s3cret" * 50_00, "expires_in": 5}, "no access_token"),
        ({"access_token": "opaque"}, "neither expires_in nor the claim exp"),
        ({"access_token": "a.%%%.c"}, "neither expires_in nor the claim exp"),
        ({"access_token": jwt(exp=1)}, "are both clocks right"),
        (b'{"access_token": "a", "expires_in": NaN}', "is good for nan s"),
        ({"access_token": "a", "expires_in": 10**12}, "is good for 1000000000000 s"),
        ({"access_token": "a", "expires_in": True}, "neither expires_in"),
        (b" " * (ANSWER_BYTES_MAX + 1), f"more than {ANSWER_BYTES_MAX} bytes"),
    ],
)
def test_answers_that_hold_no_good_token(
    endpoint: TokenEndpoint, content: bytes | dict[str, Any], said: str
) -> None:
    endpoint.answer = lambda: (200, content)
    error = problem(oidc(endpoint))
    assert said in error.str()
    assert error.retriable()


def test_a_refusal_names_the_settings_and_no_secret(endpoint: TokenEndpoint) -> None:
    said = {"error": "invalid_client", "error_description": "bad\x1b[0m" + "x" * 1000}
    endpoint.answer = lambda: (401, said)
    url = f"{endpoint.url}?key=s3cret"
    error = problem(oidc(endpoint, sasl_oauthbearer_token_endpoint_url=url))
    assert error.str().startswith(f"{endpoint.url} gave no token (HTTP 401, invalid_client bad[0mx")
    assert error.str().endswith("; check sasl.oauthbearer.client.id, .client.secret and .scope")
    assert len(error.str()) < 600
    assert not error.retriable()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_provider_in_trouble_may_come_back(endpoint: TokenEndpoint, status: int) -> None:
    endpoint.answer = lambda: (status, b"busy")
    error = problem(oidc(endpoint))
    assert f"HTTP {status}" in error.str()
    assert error.retriable()


def test_a_refusal_without_end_is_cut(endpoint: TokenEndpoint) -> None:
    endpoint.answer = lambda: (401, b" " * (ANSWER_BYTES_MAX + 1))
    assert "more than" in problem(oidc(endpoint)).str()


def test_a_redirect_is_not_followed(endpoint: TokenEndpoint) -> None:
    endpoint.headers["Location"] = endpoint.url + "/elsewhere"
    endpoint.answer = lambda: (302, b"")
    assert "HTTP 302" in problem(oidc(endpoint)).str()
    assert len(endpoint.asked) == 1


def test_a_provider_that_answers_too_slowly(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, *[100.0] * 50])
    monkeypatch.setattr("sharecoord_sdk._oidc.time.monotonic", lambda: next(clock))
    endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": 300})
    error = problem(oidc(endpoint))
    assert "did not answer within 20 s" in error.str()
    assert error.retriable()


def test_nobody_listens() -> None:
    with TokenEndpoint() as gone:
        config = oidc(gone)
    error = problem(config)
    assert "check sasl.oauthbearer.token.endpoint.url" in error.str()
    assert error.retriable()


def test_a_proxy_sees_no_secret_on_its_way_to_this_machine(
    endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": 300})
    assert fetch(oidc(endpoint)).text == "abc"


def test_a_provider_of_an_own_ca(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    with TokenEndpoint(ca.issue("server").server()) as endpoint:
        endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": 300})
        error = problem(oidc(endpoint))
        assert "set https.ca.location to the CA" in error.str()
        assert not error.retriable()
        for how in (
            {"https_ca_location": str(ca.certificate)},
            {"https_ca_pem": ca.certificate.read_text()},
        ):
            assert fetch(oidc(endpoint, **how)).text == "abc"


def test_a_consumer_gets_in_with_what_the_provider_gives(
    drivers: Drivers, endpoint: TokenEndpoint, tmp_path: Path
) -> None:
    coordinator = FakeCoordinator(f"unix:{tmp_path / 's'}")
    try:
        answers = iter([(503, b""), (200, {"access_token": "abc", "expires_in": 300})])
        endpoint.answer = lambda: next(answers)  # type: ignore[assignment,return-value]
        heard: list[KafkaError] = []
        config: dict[str, Any] = {
            **settings(endpoint, bootstrap_servers=coordinator.address),
            "error_cb": heard.append,
            "reconnect.backoff.ms": 1,
        }
        consumer = drivers.make_with(config)
        consumer.subscribe(["t"])
        stream = None
        while stream is None:
            # A provider in trouble is no error of a poll: it is waited for.
            assert consumer.poll(0.05).is_empty()
            stream = coordinator.stream_now()
        assert stream.metadata["authorization"] == "Bearer abc"
        assert [error.code() for error in heard] == [KafkaError._AUTHENTICATION]
        consumer.close()
    finally:
        coordinator.stop()
