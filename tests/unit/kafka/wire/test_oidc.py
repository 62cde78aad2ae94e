"""Tokens from an identity provider over HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sharecoord.errors import InvalidConfigError, KafkaUnavailableError, UnauthenticatedError
from sharecoord.kafka.wire.oidc import ANSWER_BYTES_MAX, client_credentials
from sharecoord.kafka.wire.tokens import Token
from tests.certificates import Authority
from tests.unit.kafka.wire.token_endpoint import TokenEndpoint


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as found:
        yield found


def config(endpoint: TokenEndpoint, **more: str) -> dict[str, str]:
    settings = {
        "client.id": "me",
        "client.secret": "s3cret",
        "token.endpoint.url": endpoint.url,
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return {f"sasl.oauthbearer.{key}": value for key, value in settings.items()}


async def issued(settings: dict[str, str]) -> Token:
    return await client_credentials(settings, wall_s=lambda: 1000.0)()


def jwt(**claims: Any) -> str:
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{text}.signature"


async def test_the_client_shows_its_secret_and_gets_a_token(endpoint: TokenEndpoint) -> None:
    endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": 300})
    token = await issued(config(endpoint, scope="kafka read", extensions="a=1, b=2"))
    assert token == Token("abc", 300.0, {"a": "1", "b": "2"})
    (asked,) = endpoint.asked
    assert asked.path == "/token"
    assert asked.form == "grant_type=client_credentials&scope=kafka+read"
    assert base64.b64decode(asked.authorization.removeprefix("Basic ")) == b"me:s3cret"


async def test_the_other_names_of_client_and_secret(endpoint: TokenEndpoint) -> None:
    endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": "300"})
    prefix = "sasl.oauthbearer"
    settings = {
        f"{prefix}.client.credentials.client.id": "me",
        f"{prefix}.client.credentials.client.secret": "x",
        f"{prefix}.token.endpoint.url": endpoint.url,
    }
    assert (await issued(settings)).life_s == 300.0
    assert base64.b64decode(endpoint.asked[0].authorization.removeprefix("Basic ")) == b"me:x"


async def test_without_expires_in_the_token_says_until_when(endpoint: TokenEndpoint) -> None:
    endpoint.answer = lambda: (200, {"access_token": jwt(exp=1600)})
    assert (await issued(config(endpoint))).life_s == 600.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>", "has no access_token"),
        (b"[" * 100_000, "has no access_token"),
        ({"access_token": 7}, "has no access_token"),
        ({"access_token": "a\x01b", "expires_in": 5}, "has no access_token"),
        ({"access_token": "opaque"}, "neither expires_in nor the claim exp"),
        ({"access_token": "a.%%%.c"}, "neither expires_in nor the claim exp"),
        ({"access_token": jwt(exp=900)}, "is good for -100.0 s: are both clocks right"),
        (b'{"access_token": "a", "expires_in": NaN}', "is good for nan s"),
        ({"access_token": "a", "expires_in": 10**12}, "is good for 1000000000000 s"),
        (b" " * (ANSWER_BYTES_MAX + 1), f"more than {ANSWER_BYTES_MAX} bytes"),
    ],
)
async def test_answers_that_hold_no_good_token(
    endpoint: TokenEndpoint, content: bytes | dict[str, Any], said: str
) -> None:
    endpoint.answer = lambda: (200, content)
    with pytest.raises(KafkaUnavailableError, match=said):
        await issued(config(endpoint))


async def test_a_refusal_names_the_settings_and_no_secret(endpoint: TokenEndpoint) -> None:
    error = {"error": "invalid_client", "error_description": "bad\x1b[0m secret"}
    endpoint.answer = lambda: (401, error)
    settings = config(endpoint)
    settings["sasl.oauthbearer.token.endpoint.url"] += "?key=hidden"
    with pytest.raises(UnauthenticatedError) as caught:
        await issued(settings)
    assert str(caught.value) == (
        f"{endpoint.url} gave no token (HTTP 401, invalid_client bad[0m secret);"
        " check kafka.sasl.oauthbearer.client.id, .client.secret and .scope"
    )


async def test_a_provider_that_is_in_trouble_may_come_back(endpoint: TokenEndpoint) -> None:
    endpoint.answer = lambda: (503, b"busy")
    with pytest.raises(KafkaUnavailableError, match="HTTP 503"):
        await issued(config(endpoint))


async def test_a_redirect_is_not_followed(endpoint: TokenEndpoint) -> None:
    endpoint.headers["Location"] = endpoint.url + "/elsewhere"
    endpoint.answer = lambda: (302, b"")
    with pytest.raises(KafkaUnavailableError, match="HTTP 302"):
        await issued(config(endpoint))
    assert len(endpoint.asked) == 1


async def test_nobody_listens() -> None:
    with TokenEndpoint() as gone:
        settings = config(gone)
    with pytest.raises(KafkaUnavailableError, match=r"no token from http://127\.0\.0\.1"):
        await issued(settings)


async def test_a_provider_of_an_own_ca(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    with TokenEndpoint(ca.issue("server").server()) as endpoint:
        endpoint.answer = lambda: (200, {"access_token": "abc", "expires_in": 300})
        with pytest.raises(UnauthenticatedError, match=r"kafka\.https\.ca\.location"):
            await issued(config(endpoint))
        for key, value in (("location", str(ca.certificate)), ("pem", ca.certificate.read_text())):
            settings = {**config(endpoint), f"https.ca.{key}": value}
            assert (await issued(settings)).text == "abc"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"token.endpoint.url": ""}, "url is not set"),
        ({"token.endpoint.url": "file:///etc/passwd"}, r"is no http\(s\)"),
        ({"client.id": ""}, "client.id is not set"),
        ({"client.secret": ""}, "client.secret is not set"),
        ({"extensions": "a1=x"}, "no name of an extension"),
    ],
)
def test_settings_that_can_not_be_used(
    endpoint: TokenEndpoint, change: dict[str, str], said: str
) -> None:
    changed = {f"sasl.oauthbearer.{key}": value for key, value in change.items()}
    with pytest.raises(InvalidConfigError, match=said):
        client_credentials({**config(endpoint), **changed})
