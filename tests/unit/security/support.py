"""Certificates, keys and signed tokens of tests, and a clock by hand."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)
ISSUER, AUDIENCE = "https://idp.example/realms/one", "sharecoord"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class Clock:
    """Unix time in milliseconds, and the waits that were asked for, which move it on."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.waits: list[float] = []

    def __call__(self) -> int:
        return self.now_ms

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_ms += round(seconds * 1000)


# -- certificates ---------------------------------------------------------------------------------

_SIGNER = ec.generate_private_key(ec.SECP256R1())


def certificate(
    *names: x509.GeneralName, common_name: str = "", ends: datetime = NOW + timedelta(days=30)
) -> bytes:
    """A certificate as PEM; without names it has no alternative ones at all."""
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(attributes))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a CA")]))
        .public_key(_SIGNER.public_key())
        .serial_number(1)
        .not_valid_before(ends - timedelta(days=400))
        .not_valid_after(ends)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(_SIGNER, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


# -- keys and tokens of an identity provider ------------------------------------------------------

RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def jwk(key: PrivateKey, key_id: str | None = "k1", **more: Any) -> dict[str, Any]:
    """The public half of a key, as an identity provider publishes it."""
    public = key.public_key()
    found: dict[str, Any]
    if isinstance(public, rsa.RSAPublicKey):
        found = jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public, ec.EllipticCurvePublicKey):
        found = jwt.algorithms.ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        found = jwt.algorithms.OKPAlgorithm.to_jwk(public, as_dict=True)
    return found | ({} if key_id is None else {"kid": key_id}) | more


def key_set(*entries: object) -> bytes:
    """A JSON Web Key Set."""
    return json.dumps({"keys": entries}).encode()


def claims(**more: Any) -> dict[str, Any]:
    """The claims of a good token; None takes one away."""
    now_s = NOW_MS // 1000
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "anna", "iat": now_s, "exp": now_s + 600}
    return {name: value for name, value in (found | more).items() if value is not None}


def signed(
    key: Any = RSA_KEY,
    *,
    algorithm: str = "RS256",
    key_id: str | None = "k1",
    **more: Any,
) -> str:
    """A token, good where nothing else is said."""
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims(**more), key, algorithm=algorithm, headers=headers)


def segment(content: object) -> str:
    """A part of a token made by hand."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def token_of(*parts: object) -> str:
    """A token of parts made by hand."""
    return ".".join(segment(part) for part in parts)


def basic(name: str, password: str) -> str:
    """The value of `authorization` with a user name and a password."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
