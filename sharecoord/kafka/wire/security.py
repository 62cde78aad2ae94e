"""How to be let in by a broker: TLS and SASL, by librdkafka's names of settings.

librdkafka has more ways than are here. `beyond` names the setting that needs it; then it reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sharecoord.errors import InvalidConfigError
from sharecoord.kafka.wire.keys import (
    MECHANISMS,
    SASL,
    TLS,
    Settings,
    flag,
    mechanism_of,
    protocol_of,
)
from sharecoord.kafka.wire.keys import beyond as beyond
from sharecoord.kafka.wire.oidc import client_credentials
from sharecoord.kafka.wire.sasl import OAuthBearer, Plain, SaslExchange, Scram
from sharecoord.kafka.wire.tls import Tls
from sharecoord.kafka.wire.tokens import Issue, Tokens, unsecured

_METHOD: Final = "sasl.oauthbearer.method"


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are, by SASL."""

    mechanism: str
    user: str
    """As an error names it; empty where a token says it."""
    advice: str
    """What to look at when a broker refuses."""
    exchange: Callable[[], Awaitable[SaslExchange]]
    """A log-in to begin with. A SharecoordError when there is no token."""


@dataclass(frozen=True, slots=True)
class Security:
    """How connections to the cluster's brokers are made; one for all of them."""

    protocol: str
    tls: Tls | None
    login: Login | None
    tokens: Tokens | None = None

    def close(self) -> None:
        """Ends a renewal of a token that is under way."""
        if self.tokens is not None:
            self.tokens.close()


PLAINTEXT: Final = Security("plaintext", None, None)


def security_of(settings: Settings, issue: Issue | None = None) -> Security:
    """The way in that the settings describe.

    Args:
        settings: librdkafka's keys; nothing in them is `beyond`.
        issue: Gives tokens of OAUTHBEARER, in place of the settings.

    Raises:
        InvalidConfigError: A file can not be read, or a value is missing or malformed.
    """
    protocol = protocol_of(settings)
    tls = Tls(settings) if protocol in TLS else None
    if protocol not in SASL:
        return Security(protocol, tls, None)
    mechanism = mechanism_of(settings)
    if mechanism not in MECHANISMS:
        known = ", ".join(MECHANISMS)
        raise InvalidConfigError(f"kafka.sasl.mechanism is {mechanism!r}; this reader has {known}")
    if mechanism == "OAUTHBEARER":
        tokens = Tokens(issue or _issue(settings))
        return Security(protocol, tls, _bearer(tokens), tokens)
    return Security(protocol, tls, _with_password(settings, mechanism))


def _with_password(settings: Settings, mechanism: str) -> Login:
    user, password = (_text(settings, key) for key in ("sasl.username", "sasl.password"))
    advice = "check kafka.sasl.username, kafka.sasl.password"
    if mechanism != "PLAIN":
        advice += f", and that the user has credentials of {mechanism} (kafka-configs)"

    async def exchange() -> SaslExchange:
        if mechanism == "PLAIN":
            return Plain(user, password)
        return Scram(mechanism, user, password)

    return Login(mechanism, user, advice, exchange)


def _bearer(tokens: Tokens) -> Login:
    async def exchange() -> SaslExchange:
        token = await tokens.current()
        return OAuthBearer(token.text, token.extensions)

    advice = "check kafka.sasl.oauthbearer.*, and what issuer and audience the broker wants"
    return Login("OAUTHBEARER", "", advice, exchange)


def _issue(settings: Settings) -> Issue:
    method = str(settings.get(_METHOD, "default")).lower()
    if method == "oidc":
        return client_credentials(settings)
    if method != "default":
        raise InvalidConfigError(f"kafka.{_METHOD} is {method!r}; it is default or oidc")
    if not flag(settings, "enable.sasl.oauthbearer.unsecure.jwt", default=False):
        raise InvalidConfigError(
            f"nothing gives tokens: set kafka.{_METHOD}=oidc with kafka.sasl.oauthbearer.client.id,"
            " .client.secret and .token.endpoint.url (in tests:"
            " kafka.enable.sasl.oauthbearer.unsecure.jwt=true)"
        )
    return unsecured(str(settings.get("sasl.oauthbearer.config") or ""))


def _text(settings: Settings, key: str) -> str:
    found = str(settings.get(key, ""))
    if not found or "\0" in found:
        problem = "is not set" if not found else "has a zero byte in it"
        raise InvalidConfigError(f"kafka.{key} {problem}; kafka.sasl.mechanism needs it")
    return found
