"""The mechanisms of SASL: PLAIN, SCRAM, OAUTHBEARER.

SCRAM is written out here because Kafka does not prepare names and passwords (RFC 4013), as SCRAM
libraries do: a password with a full-width letter would be another one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Final, Protocol

from sharecoord.kafka.wire.keys import SCRAM

ITERATIONS_MIN: Final = 4096
"""Fewer would make a stolen exchange cheap to break (RFC 7677); Kafka's clients refuse so, too."""
ITERATIONS_MAX: Final = 1_000_000
"""Kafka's brokers have at most 16,384; a peer that asks for more than this wants our CPU."""

_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")


class SaslExchange(Protocol):
    """One log-in: what to send next, and what to make of the answer."""

    def first(self) -> bytes:
        """The client's first message."""

    async def answer(self, challenge: bytes) -> bytes | None:
        """The next message; None = done.

        Raises:
            ValueError: The broker is not who it should be, or says no in the mechanism's own words.
        """


class Plain:
    """RFC 4616."""

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        """Both at once."""
        return self._message

    async def answer(self, challenge: bytes) -> bytes | None:
        """Nothing follows."""
        return None


class Scram:
    """RFC 5802 and 7677: nobody hears the password, and the broker proves that it knows it, too."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        self._hash = SCRAM[mechanism]
        self._password = password.encode()
        self._nonce = secrets.token_urlsafe(24)
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={escaped},r={self._nonce}"
        self._proof_due: bytes | None = None

    def first(self) -> bytes:
        """Name and nonce."""
        return f"n,,{self._first}".encode()

    async def answer(self, challenge: bytes) -> bytes | None:
        """Our proof; then a look at the broker's."""
        fields = _fields(challenge)
        if "e" in fields:
            raise ValueError(f"the broker says {fields['e']}")
        if self._proof_due is not None:
            found = base64.b64decode(fields.get("v", ""), validate=True)
            if not hmac.compare_digest(found, self._proof_due):
                raise ValueError("the broker does not know the password: is it the right broker?")
            return None
        nonce, iterations = fields.get("r", ""), int(fields.get("i", "0"))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ValueError("the broker's nonce does not continue ours")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            bounds = f"{ITERATIONS_MIN} to {ITERATIONS_MAX}"
            raise ValueError(f"the broker wants {iterations} iterations; {bounds} are taken")
        salt = base64.b64decode(fields.get("s", ""), validate=True)
        salted = await asyncio.to_thread(
            hashlib.pbkdf2_hmac, self._hash, self._password, salt, iterations
        )
        final = f"c=biws,r={nonce}"
        said = b",".join((self._first.encode(), challenge, final.encode()))
        client_key = self._mac(salted, b"Client Key")
        signature = self._mac(hashlib.new(self._hash, client_key).digest(), said)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._proof_due = self._mac(self._mac(salted, b"Server Key"), said)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes) -> Mapping[str, str]:
    parts = (part.partition("=") for part in message.decode().split(","))
    return {name: value for name, _, value in parts}


class OAuthBearer:
    """RFC 7628, as KIP-255 has it."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        extra = "".join(f"\x01{name}={value}" for name, value in extensions.items())
        self._message = f"n,,\x01auth=Bearer {token}{extra}\x01\x01".encode()
        self._said_no = False

    def first(self) -> bytes:
        """The token."""
        return self._message

    async def answer(self, challenge: bytes) -> bytes | None:
        """A refusal comes as a JSON text; one byte more, and the broker says so in an error."""
        if not challenge:
            return None
        if self._said_no:
            raise ValueError("the broker goes on after it has refused the token")
        self._said_no = True
        return b"\x01"


def checked_extensions(pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Extensions of a token as the protocol can carry them.

    Raises:
        ValueError: A name or a value can not be sent.
    """
    for name, value in pairs.items():
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth":
            raise ValueError(f"{name!r} is no name of an extension: letters alone, and not auth")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ValueError(f"the value of the extension {name} has letters that can not be sent")
    return pairs
