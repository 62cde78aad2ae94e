"""SCRAM (RFC 5802, RFC 7677): a client proves that it has a secret, and does not send it.

What is kept of a secret is salted. Whoever reads it can not log in with it, but can pass for the
server towards those who have the secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from sharecoord.errors import UnauthenticatedError

T = TypeVar("T")

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism, by the mechanism's name."""

ITERATIONS: Final = 4_096
"""Of secrets that are made here: the fewest that Kafka's clients accept. More would protect a
secret that can be guessed; 256 random bits can not."""

ITERATIONS_MAX: Final = 1_000_000
"""More would keep clients busy for seconds."""

SALT_BYTES: Final = 16

NONCE_BYTES: Final = 24

_VERIFIER: Final = re.compile(
    r"(?P<mechanism>[A-Z0-9-]+)\$(?P<iterations>\d{1,7}):(?P<salt>[A-Za-z0-9+/=]+)"
    r"\$(?P<stored>[A-Za-z0-9+/=]+):(?P<server>[A-Za-z0-9+/=]+)",
    re.ASCII,
)
_CLIENT_FIRST: Final = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<authzid>[^,]+))?,)(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[!-+\--~]+)"
    r"(?:,[A-Za-z]=[^,]*)*)"
)
_CLIENT_FINAL: Final = re.compile(
    r"(?P<without>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_MALFORMED: Final = "the message is none of SCRAM (RFC 5802)"
NOT_FOR_OTHERS: Final = "nobody acts for another user here: send no authorization id"
_WRONG: Final = (
    "the user name and password are not good here (any more). Ask the operator of the coordinator "
    "for a new token (sharecoord tokens create --scram)"
)


@dataclass(frozen=True, slots=True)
class Verifier:
    """What is kept of a secret for one mechanism."""

    mechanism: str
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __str__(self) -> str:
        """As RFC 5803 writes it."""
        salt, stored, server = map(_text, (self.salt, self.stored_key, self.server_key))
        return f"{self.mechanism}${self.iterations}:{salt}${stored}:{server}"


def make_verifier(
    mechanism: str, secret: str, salt: bytes, iterations: int = ITERATIONS
) -> Verifier:
    """What is to be kept of a secret, which has ASCII characters alone."""
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, secret.encode("ascii"), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    return Verifier(
        mechanism, iterations, salt, stored_key, hmac.digest(salted, b"Server Key", name)
    )


def read_verifier(text: str) -> Verifier:
    """Reads what `str(Verifier)` writes.

    Raises:
        ValueError: It is no such text; the message is the end of "it must …".
    """
    found = _VERIFIER.fullmatch(text)
    if found is None or found["mechanism"] not in HASHES:
        raise ValueError(
            f"be MECHANISM$ITERATIONS:SALT$STORED-KEY:SERVER-KEY of {' or '.join(HASHES)}"
        )
    iterations, size = int(found["iterations"]), hashlib.new(HASHES[found["mechanism"]]).digest_size
    if not ITERATIONS <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"have {ITERATIONS} to {ITERATIONS_MAX} iterations")
    try:
        salt, stored, server = (_bytes(found[part]) for part in ("salt", "stored", "server"))
    except binascii.Error:
        raise ValueError("have salt and keys in base64") from None
    if not len(stored) == len(server) == size:
        raise ValueError(f"have keys of {size} bytes")
    return Verifier(found["mechanism"], iterations, salt, stored, server)


class ScramServer(Generic[T]):
    """One exchange, on the side of the server."""

    def __init__(
        self,
        mechanism: str,
        find: Callable[[str], Sequence[tuple[Verifier, T]]],
        *,
        fake_key: bytes,
        nonce: str = "",
    ) -> None:
        """Begins an exchange.

        Args:
            mechanism: One of `HASHES`.
            find: What is kept of the secrets of a user, all with one salt and one count of
                iterations, and what each proves; none = there is no such user.
            fake_key: Makes the salts of users that are not there: always the same for a name, so
                that nobody learns by asking which names there are.
            nonce: The server's part of it; "" = a random one.
        """
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._find = find
        self._fake_key = fake_key
        self._nonce = nonce or secrets.token_urlsafe(NONCE_BYTES)
        self._found: Sequence[tuple[Verifier, T]] = ()
        self._gs2 = self._said = ""

    def first(self, message: bytes) -> bytes:
        """Answers the client's first message.

        Raises:
            UnauthenticatedError: It is none, or wants to act for somebody else.
        """
        said = _matched(_CLIENT_FIRST, message)
        name = _name(said["name"])
        if said["authzid"] is not None and _name(said["authzid"]) != name:
            raise UnauthenticatedError(NOT_FOR_OTHERS)
        self._found = self._find(name)
        if self._found:
            verifier = self._found[0][0]
            salt, iterations = verifier.salt, verifier.iterations
        else:
            seed = f"{self._mechanism}\0{name}".encode(errors="surrogatepass")
            salt, iterations = hmac.digest(self._fake_key, seed, "sha256")[:SALT_BYTES], ITERATIONS
        self._nonce = said["nonce"] + self._nonce
        answer = f"r={self._nonce},s={_text(salt)},i={iterations}"
        self._gs2, self._said = said["gs2"], f"{said['bare']},{answer}"
        return answer.encode()

    def last(self, message: bytes) -> tuple[bytes, T]:
        """Answers the client's last message; returns the answer, and what the secret proves.

        Raises:
            UnauthenticatedError: The client does not have the secret.
        """
        said = _matched(_CLIENT_FINAL, message)
        if said["nonce"] != self._nonce or _decoded(said["binding"]) != self._gs2.encode():
            raise UnauthenticatedError(_MALFORMED)
        proof, about = _decoded(said["proof"]), f"{self._said},{said['without']}".encode()
        for verifier, proves in self._found:
            signature = hmac.digest(verifier.stored_key, about, self._hash)
            if len(proof) != len(signature):
                break
            client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
            shown = hashlib.new(self._hash, client_key).digest()
            if hmac.compare_digest(shown, verifier.stored_key):
                own = hmac.digest(verifier.server_key, about, self._hash)
                return f"v={_text(own)}".encode(), proves
        raise UnauthenticatedError(_WRONG)


def _matched(form: re.Pattern[str], message: bytes) -> re.Match[str]:
    try:
        found = form.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise UnauthenticatedError(_MALFORMED)
    return found


def _name(text: str) -> str:
    """A user name without the escapes of commas and equals signs."""
    if re.search("=(?!2C|3D)", text):
        raise UnauthenticatedError(_MALFORMED)
    return text.replace("=2C", ",").replace("=3D", "=")


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _decoded(text: str) -> bytes:
    try:
        return _bytes(text)
    except binascii.Error:
        raise UnauthenticatedError(_MALFORMED) from None
