"""Tokens from an identity provider: OAuth 2's client credentials over HTTP (RFC 6749, 4.4)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib import parse, request

from sharecoord.errors import InvalidConfigError, SharecoordError, UnauthenticatedError
from sharecoord.kafka.wire.faults import printable, unavailable
from sharecoord.kafka.wire.keys import Settings
from sharecoord.kafka.wire.sasl import checked_extensions
from sharecoord.kafka.wire.tls import load_authorities
from sharecoord.kafka.wire.tokens import LIFE_MAX_S, Issue, Token

ANSWER_BYTES_MAX: Final = 256 << 10
"""A token with all groups of a person in it has some ten kilobytes."""

TIMEOUT_S: Final = 10.0
"""Longest silence of the provider; the whole answer has twice as long."""

_READ_BYTES: Final = 16 << 10
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_PREFIX: Final = "sasl.oauthbearer"


def client_credentials(settings: Settings, *, wall_s: Callable[[], float] = time.time) -> Issue:
    """Issues tokens for the client of the settings.

    Raises:
        InvalidConfigError: A setting is missing, or can not be used.
    """
    provider = _Provider(settings, wall_s)

    async def issue() -> Token:
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                return await asyncio.to_thread(provider.ask)
        except TimeoutError:
            raise unavailable(f"{provider.place} did not answer in {2 * TIMEOUT_S:g} s") from None

    return issue


class _Provider:
    """Where tokens come from."""

    def __init__(self, settings: Settings, wall_s: Callable[[], float]) -> None:
        self._settings = settings
        self._wall_s = wall_s
        url = _needed(settings, "token.endpoint.url")
        parts = parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfigError(
                f"kafka.{_PREFIX}.token.endpoint.url is no http(s)://… address"
            )
        self.place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        """The address without what might be secret in it."""
        self._url = url
        client_id = _needed(settings, "client.id", "client.credentials.client.id")
        secret = _needed(settings, "client.secret", "client.credentials.client.secret")
        pair = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        self._headers = {"Authorization": f"Basic {pair}", "Accept": "application/json"}
        form = {"grant_type": "client_credentials"}
        if scope := settings.get(f"{_PREFIX}.scope"):
            form["scope"] = str(scope)
        self._form = parse.urlencode(form).encode()
        self._extensions = _extensions(str(settings.get(f"{_PREFIX}.extensions") or ""))
        self._tls()

    def _tls(self) -> ssl.SSLContext:
        """Made for each token: the CA's file may have changed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        load_authorities(context, self._settings, "https.ca")
        return context

    def ask(self) -> Token:
        """Gets a token; blocks. Knows of no redirects: no other place is told the secret."""
        ends_s = time.monotonic() + 2 * TIMEOUT_S
        opener = request.OpenerDirector()
        for handler in (
            request.ProxyHandler(),
            request.HTTPHandler(),
            request.HTTPSHandler(context=self._tls()),
        ):
            opener.add_handler(handler)
        wanted = request.Request(self._url, data=self._form, headers=self._headers, method="POST")
        try:
            with opener.open(wanted, timeout=TIMEOUT_S) as answer:
                status, content = answer.status, self._content(answer, ends_s)
        except OSError as error:
            raise self._silent(error) from error
        except (HTTPException, ValueError) as error:
            raise unavailable(f"{self.place} did not answer in HTTP: {error}") from error
        if not 200 <= status < 300:
            raise self._refused(status, content)
        return self._token(content)

    def _content(self, answer: HTTPResponse, ends_s: float) -> bytes:
        """The answer piece by piece: one of a byte now and then would keep a thread for days."""
        content = b""
        while part := answer.read1(_READ_BYTES):
            content += part
            if len(content) > ANSWER_BYTES_MAX:
                raise unavailable(f"{self.place} sent more than {ANSWER_BYTES_MAX} bytes")
            if time.monotonic() > ends_s:
                raise TimeoutError("its answer has no end")
        return content

    def _silent(self, error: OSError) -> SharecoordError:
        why = getattr(error, "reason", error)
        if isinstance(why, ssl.SSLCertVerificationError):
            fix = "set kafka.https.ca.location to the CA that signed it"
            return UnauthenticatedError(
                f"the certificate of {self.place} is not good: {why.verify_message}; {fix}"
            )
        return unavailable(f"no token from {self.place}: {why}")

    def _refused(self, status: int, content: bytes) -> SharecoordError:
        answer = _json(content)
        said = " ".join(str(answer.get(key) or "") for key in ("error", "error_description"))
        shown = printable(said).strip()
        text = f"{self.place} gave no token (HTTP {status}{f', {shown}' if shown else ''})"
        if status in (400, 401, 403):
            fix = f"check kafka.{_PREFIX}.client.id, .client.secret and .scope"
            return UnauthenticatedError(f"{text}; {fix}")
        return unavailable(f"{text}; check kafka.{_PREFIX}.token.endpoint.url")

    def _token(self, content: bytes) -> Token:
        answer = _json(content)
        text = answer.get("access_token")
        if not isinstance(text, str) or not _TOKEN.fullmatch(text):
            raise unavailable(f"the answer of {self.place} has no access_token")
        life_s = answer.get("expires_in")
        if isinstance(life_s, str) and life_s.isdecimal():
            life_s = int(life_s)
        if not _is_number(life_s):
            # Without it the token itself says until when, by the provider's clock.
            ends_s: Any = _claims(text).get("exp")
            life_s = ends_s - self._wall_s() if _is_number(ends_s) else None
        if life_s is None:
            raise unavailable(f"a token of {self.place} has neither expires_in nor the claim exp")
        if not 0 < life_s <= LIFE_MAX_S:
            text = f"a token of {self.place} is good for {life_s} s: are both clocks right?"
            raise unavailable(text)
        return Token(text, float(life_s), self._extensions)


def _needed(settings: Settings, *names: str) -> str:
    for name in names:
        if found := settings.get(f"{_PREFIX}.{name}"):
            return str(found)
    raise InvalidConfigError(
        f"kafka.{_PREFIX}.{names[0]} is not set; kafka.{_PREFIX}.method=oidc needs it"
    )


def _extensions(text: str) -> Mapping[str, str]:
    pairs = (pair.strip().partition("=") for pair in text.split(",") if pair.strip())
    try:
        return checked_extensions({name: value for name, _, value in pairs})
    except ValueError as error:
        raise InvalidConfigError(f"kafka.{_PREFIX}.extensions: {error}") from None


def _json(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _claims(token: str) -> Mapping[str, Any]:
    """What a JWT says; nothing for other tokens."""
    _, _, rest = token.partition(".")
    payload = rest.partition(".")[0]
    try:
        return _json(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, binascii.Error):
        return {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
