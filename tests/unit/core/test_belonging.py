"""Proofs of belonging: one fits one end of one link between two coordinators, and nothing else."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from sharecoord.core.fleet.belonging import (
    NONCE_BYTES,
    SECRET_BYTES,
    Greeting,
    Side,
    proof_of,
    proves,
)

SECRET, OTHER_SECRET = b"s" * SECRET_BYTES, b"S" * SECRET_BYTES
GREETING = Greeting("gateway-1", "owner-1", b"g" * NONCE_BYTES, b"o" * NONCE_BYTES)
PROOF = proof_of(Side.GATEWAY, SECRET, GREETING)


def test_the_proof_of_ones_own_secret_is_good() -> None:
    for side in Side:
        assert proves(proof_of(side, SECRET, GREETING), side, SECRET, GREETING)


def test_a_proof_is_an_hmac_over_all_that_was_said() -> None:
    """Coordinators of later releases must make the same: this is a part of the protocol."""
    parts = b"sharecoord peer link, protocol 2", b"gateway", b"gateway-1", b"owner-1"
    text = b"".join(bytes([0, 0, 0, len(part)]) + part for part in parts)
    text += b"\0\0\0\x20" + b"g" * 32 + b"\0\0\0\x20" + b"o" * 32
    assert hmac.new(SECRET, text, hashlib.sha256).digest() == PROOF


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(GREETING._replace(gateway_id="gateway-2"), id="another gateway"),
        pytest.param(GREETING._replace(owner_id="owner-2"), id="another owner"),
        pytest.param(GREETING._replace(gateway_nonce=b"h" * NONCE_BYTES), id="another hello"),
        pytest.param(GREETING._replace(owner_nonce=b"p" * NONCE_BYTES), id="another welcome"),
        pytest.param(
            GREETING._replace(gateway_id="owner-1", owner_id="gateway-1"), id="ids swapped"
        ),
        pytest.param(
            GREETING._replace(gateway_nonce=b"o" * NONCE_BYTES, owner_nonce=b"g" * NONCE_BYTES),
            id="nonces swapped",
        ),
        pytest.param(GREETING._replace(gateway_id="gateway-1o", owner_id="wner-1"), id="moved"),
    ],
)
def test_a_proof_fits_no_other_link(other: Greeting) -> None:
    assert not proves(PROOF, Side.GATEWAY, SECRET, other)


def test_a_proof_is_not_the_other_sides() -> None:
    assert not proves(PROOF, Side.OWNER, SECRET, GREETING)


def test_another_secret_proves_nothing() -> None:
    assert not proves(PROOF, Side.GATEWAY, OTHER_SECRET, GREETING)


@pytest.mark.parametrize("proof", [b"", PROOF[:-1], PROOF + b"\0", bytes(len(PROOF))])
def test_what_is_no_proof_is_refused(proof: bytes) -> None:
    assert not proves(proof, Side.GATEWAY, SECRET, GREETING)


@pytest.mark.parametrize("secret", [b"", SECRET[:-1], SECRET + b"s"])
def test_a_row_without_a_whole_secret_lets_nobody_in(secret: bytes) -> None:
    proof = proof_of(Side.GATEWAY, secret, GREETING)
    assert not proves(proof, Side.GATEWAY, secret, GREETING)


@pytest.mark.parametrize("nonce", [b"", b"n", b"n" * (NONCE_BYTES + 1)])
def test_a_nonce_of_another_length_is_refused(nonce: bytes) -> None:
    for greeting in (
        GREETING._replace(gateway_nonce=nonce),
        GREETING._replace(owner_nonce=nonce),
    ):
        proof = proof_of(Side.GATEWAY, SECRET, greeting)
        assert not proves(proof, Side.GATEWAY, SECRET, greeting)
