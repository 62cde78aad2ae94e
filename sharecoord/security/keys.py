"""The keys of an identity provider: a JSON Web Key Set (RFC 7517) from a file or an address.

Only public keys that verify are taken: no secret of HMAC ever verifies a token, and a private key
that a provider publishes by mistake is used as the public key that it contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from sharecoord.errors import InvalidConfigError
from sharecoord.security.files import WatchedFiles

SETTING: Final = "security.oidc.jwks"

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

KEYS_MAX: Final = 100
"""Most keys of one set: providers have two or three, and a token without a key id tries them."""

RSA_BITS_MIN: Final = 2_048
"""The shortest key of RSA that is used (NIST SP 800-131A)."""


class VerifyingKey(NamedTuple):
    """One public key, and the algorithms of signatures that it may verify."""

    key_id: str
    """"" = the key has none."""
    algorithms: tuple[str, ...]
    public: PublicKey


class KeySet:
    """The keys of a provider as they were read at one time."""

    def __init__(self, keys: Iterable[VerifyingKey]) -> None:
        self.keys = tuple(keys)

    def with_id(self, key_id: str, algorithm: str) -> list[VerifyingKey]:
        """The keys that may verify a token; a token without a key id may be of any of them."""
        return [
            key for key in self.keys if algorithm in key.algorithms and key_id in ("", key.key_id)
        ]

    def has(self, key_id: str) -> bool:
        """Whether a key has this id; any set has "", which is none."""
        return not key_id or any(key.key_id == key_id for key in self.keys)


def read_key_set(content: bytes) -> KeySet:
    """Reads a JSON Web Key Set.

    Keys that can not be used (encryption, HMAC, unknown curves, too short) are left out, since a
    provider publishes its keys for many.

    Raises:
        InvalidConfigError: It is none, or no key in it can be used.
    """
    try:
        document = json.loads(content)
        entries = document["keys"]
    except (ValueError, RecursionError, TypeError, KeyError):
        entries = None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise InvalidConfigError(
            f'{SETTING}: there is no JSON Web Key Set, `{{"keys": [...]}}` with at most '
            f"{KEYS_MAX} keys; name the `jwks_uri` of the provider"
        )
    found = [key for entry in entries if (key := _key(entry)) is not None]
    if not found:
        raise InvalidConfigError(
            f"{SETTING}: the JSON Web Key Set has no key that can verify signatures (RSA of "
            f"{RSA_BITS_MIN} bits at least, EC of P-256, P-384 or P-521, Ed25519)"
        )
    return KeySet(found)


def read_key_file(contents: Mapping[str, bytes]) -> KeySet:
    """As `read_key_set`, for `WatchedFiles`."""
    return read_key_set(contents[SETTING])


_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_EC: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS: Final = (*_RSA, *_EC.values(), "EdDSA")
"""All signatures that are accepted. Never `none`, and none of HMAC (`HS…`): whoever knows a public
key could sign with it."""


def _key(entry: object) -> VerifyingKey | None:
    """The key of an entry; None = it can not be used."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or not {"verify", "sign"} & set(map(str, operations)):
        return None
    try:
        public = _public_key(entry)
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, AttributeError):
        return None
    algorithms = _algorithms_of(public)
    wanted, key_id = entry.get("alg"), entry.get("kid", "")
    if wanted is not None:
        algorithms = tuple(each for each in algorithms if each == wanted)
    if not algorithms or not isinstance(key_id, str):
        return None
    return VerifyingKey(key_id, algorithms, public)


def _public_key(entry: Mapping[str, Any]) -> PublicKey:
    """The public half of an entry, also of one that has the private half in it."""
    public = {name: value for name, value in entry.items() if name != "d"}
    kind = _KINDS.get(str(entry.get("kty")))
    if kind is None:
        raise ValueError("not a kind of key that can verify")
    found = kind.from_jwk(public)
    if not isinstance(found, PublicKey):
        raise TypeError("not a public key")
    return found


_KINDS: Final[dict[str, type[RSAAlgorithm | ECAlgorithm | OKPAlgorithm]]] = {
    "RSA": RSAAlgorithm,
    "EC": ECAlgorithm,
    "OKP": OKPAlgorithm,
}


def _algorithms_of(key: PublicKey) -> tuple[str, ...]:
    if isinstance(key, RSAPublicKey):
        return _RSA if key.key_size >= RSA_BITS_MIN else ()
    if isinstance(key, EllipticCurvePublicKey):
        return (_EC[key.curve.name],) if key.curve.name in _EC else ()
    return ("EdDSA",)


# -- where keys come from -------------------------------------------------------------------------


class Keys(Protocol):
    """Where the keys of a provider come from."""

    @property
    def value(self) -> KeySet | None:
        """The keys as they are known now; another object once they have changed."""

    async def look_for(self, key_id: str) -> None:
        """Asks for the keys anew, because nobody has a key of this id; returns when that is done.

        Raises:
            KeysUnavailableError: There are no keys at all.
        """


class FileKeys:
    """Keys in a file, which a `FileWatch` reads again when it changes."""

    def __init__(self, files: WatchedFiles[KeySet]) -> None:
        self.files = files

    @property
    def value(self) -> KeySet | None:
        """The keys."""
        return self.files.value

    async def look_for(self, key_id: str) -> None:
        """Nothing: the file is looked at each second anyway."""
