"""SASL (RFC 4422): the mechanisms by which a connection proves who it is, message by message.

PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628) say what HTTP's authorization header says, so the same
checks are made of it. SCRAM-SHA-256 and SCRAM-SHA-512 ask the entries of tokens that have what
these mechanisms need.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Final

from sharecoord.errors import UnauthenticatedError
from sharecoord.security.authenticator import OAUTHBEARER, PLAIN, Authenticator
from sharecoord.security.principals import USER, Credentials, Identity
from sharecoord.security.scram import NOT_FOR_OTHERS, ScramServer

_OAUTH: Final = re.compile(
    r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)*)\x01"
)
_OAUTH_REFUSED: Final = json.dumps({"status": "invalid_token"}, separators=(",", ":")).encode()
"""What the client is told; it answers with one byte, and hears then that it failed (RFC 7628)."""


class SaslExchange:
    """One exchange; made anew for each proof."""

    def __init__(self, mechanism: str, authenticator: Authenticator, address: str) -> None:
        """Begins an exchange.

        Args:
            mechanism: One of the authenticator's.
            authenticator: Checks what the client says.
            address: Of the client, for `Authenticator.identify`.
        """
        self._authenticator = authenticator
        self._address = address
        self._refused: UnauthenticatedError | None = None
        self._scram: ScramServer[Identity] | None = None
        self._is_first = True
        self._step = self._plain if mechanism == PLAIN else self._bearer
        if mechanism not in (PLAIN, OAUTHBEARER):
            self._step = self._scrammed
            self._scram = authenticator.scram(mechanism)

    async def step(self, message: bytes) -> tuple[bytes, Identity | None]:
        """Answers a message of the client; with an identity the exchange is over.

        Raises:
            UnauthenticatedError: The client has not proven who it is.
            SharecoordError: As `Authenticator.identify`.
        """
        return await self._step(message)

    async def _plain(self, message: bytes) -> tuple[bytes, Identity | None]:
        async with self._authenticator.slowing(self._address):
            credentials = _plain(message)
        return b"", await self._authenticator.identify(credentials, self._address)

    async def _bearer(self, message: bytes) -> tuple[bytes, Identity | None]:
        if self._refused is not None:
            raise self._refused
        async with self._authenticator.slowing(self._address):
            credentials, wanted = _bearer(message)
        try:
            identity = await self._authenticator.identify(credentials, self._address)
            if wanted and USER + wanted != identity.principal.name:
                raise UnauthenticatedError(NOT_FOR_OTHERS)
        except UnauthenticatedError as error:
            self._refused = error
            return _OAUTH_REFUSED, None
        return b"", identity

    async def _scrammed(self, message: bytes) -> tuple[bytes, Identity | None]:
        assert self._scram is not None, "made for it"
        is_first, self._is_first = self._is_first, False
        async with self._authenticator.slowing(self._address):
            if is_first:
                return self._scram.first(message), None
            answer, identity = self._scram.last(message)
            return answer, self._authenticator.good_still(identity)


def _plain(message: bytes) -> Credentials:
    """What `[authorization id] NUL name NUL password` says."""
    parts = message.split(b"\0")
    if len(parts) != 3 or not parts[1]:
        raise UnauthenticatedError("the message is none of PLAIN: name and password (RFC 4616)")
    authzid, name, password = parts
    if authzid not in (b"", name):
        raise UnauthenticatedError(NOT_FOR_OTHERS)
    return Credentials("Basic " + base64.b64encode(name + b":" + password).decode())


def _bearer(message: bytes) -> tuple[Credentials, str]:
    """The token, and the user whom the client wants to be; "" = whoever the token names."""
    found = _OAUTH.fullmatch(message.decode("utf-8", errors="replace"))
    pairs = [] if found is None else found["pairs"].split("\x01")
    said = dict(each.split("=", 1) for each in pairs if each)
    if found is None or not said.get("auth"):
        raise UnauthenticatedError("the message is none of OAUTHBEARER: a token (RFC 7628)")
    return Credentials(said["auth"]), found["authzid"] or ""
