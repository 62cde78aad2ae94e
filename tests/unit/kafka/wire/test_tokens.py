"""Tokens: shared, renewed in time, and asked for with back-off."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from sharecoord.errors import InvalidConfigError, KafkaUnavailableError, SharecoordError
from sharecoord.kafka.wire.tokens import Token, Tokens, unsecured
from tests.unit.kafka.wire.fake_broker import Hours, hours


class Issuer:
    """Gives tokens that are good for 100 s, when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.error: SharecoordError | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> Token:
        self.asked += 1
        number = self.asked
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return Token(f"token-{number}", 100.0)


@pytest.fixture
async def clock() -> AsyncIterator[Hours]:
    with hours() as found:
        yield found


@pytest.fixture
async def issuer() -> Issuer:
    return Issuer()


async def text_of(tokens: Tokens) -> str:
    return (await tokens.current()).text


async def test_all_share_one_token_until_its_last_fifth(issuer: Issuer, clock: Hours) -> None:
    tokens = Tokens(issuer)
    assert await asyncio.gather(*(text_of(tokens) for _ in range(5))) == ["token-1"] * 5
    clock.forward(79.0)
    assert await text_of(tokens) == "token-1"
    clock.forward(1.5)
    assert await asyncio.gather(*(text_of(tokens) for _ in range(5))) == ["token-2"] * 5
    assert issuer.asked == 2


async def test_a_slow_issuer_is_not_waited_for_while_the_token_is_good(
    issuer: Issuer, clock: Hours
) -> None:
    tokens = Tokens(issuer)
    await tokens.current()
    issuer.open.clear()
    clock.forward(90.0)
    waits = asyncio.ensure_future(text_of(tokens))
    await asyncio.sleep(0)
    clock.forward(1.1)
    assert await waits == "token-1"
    issuer.open.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await text_of(tokens) == "token-2"
    assert issuer.asked == 2


async def test_failures_are_said_once_and_asked_about_with_back_off(
    issuer: Issuer, clock: Hours
) -> None:
    tokens = Tokens(issuer)
    await tokens.current()
    issuer.error = KafkaUnavailableError("the provider is down")
    with structlog.testing.capture_logs() as logs:
        clock.forward(85.0)
        for seconds, asked in ((0.0, 2), (0.5, 2), (0.6, 3), (1.5, 3), (0.6, 4)):
            clock.forward(seconds)
            assert await text_of(tokens) == "token-1"
            assert issuer.asked == asked
        clock.forward(20.0)
        for _ in range(2):
            with pytest.raises(KafkaUnavailableError, match="the provider is down"):
                await tokens.current()
        assert issuer.asked == 5
        issuer.error = None
        clock.forward(8.1)
        assert await text_of(tokens) == "token-6"
    assert [each["event"] for each in logs] == [
        "kafka token not issued, asking again with back-off",
        "kafka tokens are issued again",
    ]


async def test_who_goes_away_does_not_end_the_renewal(issuer: Issuer) -> None:
    tokens = Tokens(issuer)
    issuer.open.clear()
    first, second = (asyncio.ensure_future(text_of(tokens)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    issuer.open.set()
    assert await second == "token-1"


async def test_close_ends_a_renewal(issuer: Issuer) -> None:
    tokens = Tokens(issuer)
    issuer.open.clear()
    waits = asyncio.ensure_future(text_of(tokens))
    await asyncio.sleep(0)
    tokens.close()
    with pytest.raises(SharecoordError):
        await waits
    tokens.close()


def test_a_token_is_not_shown_by_accident() -> None:
    assert "secret" not in repr(Token("secret", 1.0))


# -- without a signature --------------------------------------------------------------------------


def decoded(part: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


async def test_an_unsecured_token_says_what_its_config_says() -> None:
    issue = unsecured(
        "principalClaimName=azp principal=admin scopeClaimName=roles scope=r1,r2"
        " lifeSeconds=600 extension_traceId=123",
        wall_s=lambda: 1000.0,
    )
    token = await issue()
    head, claims, signature = token.text.split(".")
    assert decoded(head) == {"alg": "none"}
    assert decoded(claims) == {"azp": "admin", "iat": 1000.0, "exp": 1600.0, "roles": ["r1", "r2"]}
    assert signature == ""
    assert token.life_s == 600
    assert token.extensions == {"traceId": "123"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "no principal="),
        ("principal=", "principal has no value"),
        ("principal=a principal=b", "or two"),
        ("principal=a colour=red", "has 'colour'"),
        ("principal=a lifeSeconds=soon", "invalid literal"),
        ("principal=a lifeSeconds=0", "is not within 1 to"),
        ("principal=a extension_a1=x", "'a1' is no name of an extension"),
        ("principal=a extension_auth=x", "not auth"),
        ("principal=a extension_b=\x01", "can not be sent"),
    ],
)
def test_a_config_that_can_not_be_used(config: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=rf"sasl\.oauthbearer\.config.*{said}"):
        unsecured(config)
