"""The client's side of SASL, message by message."""

from __future__ import annotations

import base64
import hashlib
import hmac

from sharecoord.security.scram import HASHES

NONCE = "rOprNGfwEbeRWgbNEkqO"


def plain(name: str, password: str, acts_for: str = "") -> bytes:
    """The message of PLAIN."""
    return "\0".join((acts_for, name, password)).encode()


def bearer(token: str, acts_for: str = "") -> bytes:
    """The message of OAUTHBEARER."""
    header = f"n,a={acts_for}," if acts_for else "n,,"
    return f"{header}\x01auth=Bearer {token}\x01\x01".encode()


def scram_first(name: str) -> bytes:
    """The first message of SCRAM."""
    return f"n,,n={name},r={NONCE}".encode()


def scram_final(first: bytes, answer: bytes, secret: str, mechanism: str) -> bytes:
    """The last message of SCRAM, of a client that has a secret."""
    name = HASHES[mechanism]
    said = dict(part.split("=", 1) for part in answer.decode().split(","))
    salt, iterations = base64.b64decode(said["s"]), int(said["i"])
    salted = hashlib.pbkdf2_hmac(name, secret.encode(), salt, iterations)
    key = hmac.digest(salted, b"Client Key", name)
    without = f"c=biws,r={said['r']}"
    about = b",".join((first.partition(b",,")[2], answer, without.encode()))
    signature = hmac.digest(hashlib.new(name, key).digest(), about, name)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{without},p={base64.b64encode(proof).decode()}".encode()
