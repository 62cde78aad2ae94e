"""Tokens from an identity provider: OAuth 2's client credentials over HTTP (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib import parse, request

from ._core.credentials import LIFE_MAX_S, BearerToken, OidcConfig
from ._core.errors import KafkaError, KafkaException
from ._core.texts import is_token
from ._core.tls_files import TlsFilesError, read_authorities

#: A token with all groups of a person in it has some ten kilobytes.
ANSWER_BYTES_MAX: Final = 256 << 10
#: Longest silence of the provider, in seconds; the whole answer has twice as long.
TIMEOUT_S: Final = 10.0

_READ_BYTES: Final = 16 << 10
_SAID_CHARS_MAX: Final = 300
_PREFIX: Final = "sasl.oauthbearer"


def fetch(config: OidcConfig) -> BearerToken:
    """Gets a token; blocks. Redirects are not followed: no other place is told the secret.

    Raises:
        KafkaException: _AUTHENTICATION, retriable when the provider may have another answer later.
    """
    deadline = time.monotonic() + 2 * TIMEOUT_S
    pair = f"{config.client_id}:{config.client_secret}".encode()
    form = {"grant_type": "client_credentials"}
    if config.scope:
        form["scope"] = config.scope
    wanted = request.Request(
        config.url,
        data=parse.urlencode(form).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(pair).decode()}",
            "Accept": "application/json",
        },
        method="POST",
    )
    opener = _opener(config)
    try:
        with opener.open(wanted, timeout=TIMEOUT_S) as answer:
            status, content = answer.status, _content(config, answer, deadline)
    except OSError as error:
        raise _silent(config, error) from error
    except (HTTPException, ValueError) as error:
        raise _problem(config, f"did not answer in HTTP: {error}") from error
    if not 200 <= status < 300:
        raise _refused(config, status, content)
    return _token(config, content)


def _opener(config: OidcConfig) -> request.OpenerDirector:
    """Made for each token: the CA's file may have changed. Knows of no redirects."""
    try:
        ca = read_authorities("https.ca", config.ca)
    except TlsFilesError as error:
        raise _problem(config, f"was not asked for a token: {error}") from None
    context = ssl.create_default_context(cadata=ca)
    # A proxy would see what goes to http addresses.
    is_plain = config.url.lower().startswith("http:")
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler({} if is_plain else None),
        request.HTTPHandler(),
        request.HTTPSHandler(context=context),
    ):
        opener.add_handler(handler)
    return opener


def _content(config: OidcConfig, answer: HTTPResponse, deadline: float) -> bytes:
    """The answer piece by piece: one of a byte now and then would keep a thread for days."""
    content = b""
    while part := answer.read1(_READ_BYTES):
        content += part
        if len(content) > ANSWER_BYTES_MAX:
            raise _problem(config, f"sent more than {ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise _problem(config, f"did not answer within {2 * TIMEOUT_S:g} s")
    return content


def _place(config: OidcConfig) -> str:
    """The address without what might be secret in it."""
    parts = parse.urlsplit(config.url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _problem(config: OidcConfig, what: str, *, retriable: bool = True) -> KafkaException:
    text = f"{_place(config)} {what}"
    return KafkaException(KafkaError(KafkaError._AUTHENTICATION, text, retriable=retriable))


def _silent(config: OidcConfig, error: OSError) -> KafkaException:
    why = getattr(error, "reason", error)
    if isinstance(why, ssl.SSLCertVerificationError):
        fix = "set https.ca.location to the CA that signed it"
        what = f"has a certificate that is not good: {why.verify_message}; {fix}"
        return _problem(config, what, retriable=False)
    return _problem(config, f"gave no token: {why}; check {_PREFIX}.token.endpoint.url")


def _refused(config: OidcConfig, status: int, content: bytes) -> KafkaException:
    answer = _object(content)
    said = " ".join(str(answer.get(key) or "") for key in ("error", "error_description"))
    shown = "".join(filter(str.isprintable, said)).strip()[:_SAID_CHARS_MAX]
    what = f"gave no token (HTTP {status}{f', {shown}' if shown else ''})"
    if status in (400, 401, 403):
        fix = f"check {_PREFIX}.client.id, .client.secret and .scope"
        return _problem(config, f"{what}; {fix}", retriable=False)
    return _problem(config, f"{what}; check {_PREFIX}.token.endpoint.url")


def _token(config: OidcConfig, content: bytes) -> BearerToken:
    answer = _object(content)
    text = answer.get("access_token")
    if not isinstance(text, str) or not is_token(text):
        raise _problem(config, "sent no access_token that can be shown")
    life_s = answer.get("expires_in")
    if isinstance(life_s, str) and life_s.isdecimal():
        life_s = float(life_s)
    if not _is_number(life_s):
        # Without it the token itself says until when, by the provider's clock.
        ends_s: Any = claims(text).get("exp")
        life_s = ends_s - time.time() if _is_number(ends_s) else None
    if life_s is None:
        raise _problem(config, "sent a token with neither expires_in nor the claim exp")
    if not 0 < life_s <= LIFE_MAX_S:
        raise _problem(config, f"sent a token that is good for {life_s} s: are both clocks right?")
    return BearerToken(text, float(life_s))


def claims(token: str) -> Mapping[str, Any]:
    """What a JWT says, unchecked; nothing for other tokens."""
    _, _, rest = token.partition(".")
    payload = rest.partition(".")[0]
    try:
        return _object(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return {}


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
