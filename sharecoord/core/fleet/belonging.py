"""Proof of belonging: how the two ends of a new link between coordinators know each other.

Each coordinator draws a secret at its start and writes it into its lease row of the store that the
fleet shares. Who opens a link (the gateway) and who answers (the owner) each prove that they hold
the secret of the row that bears their id. The secrets never leave the store and their processes:

1. The gateway says hello: both ids, and a nonce.
2. The owner answers with a nonce of its own, and with its proof over all four.
3. The gateway, which knows now that the owner is no stranger, shows its own proof.

A nonce is drawn for one link, so what somebody recorded of another link proves nothing. The side
stands in each proof, so that no answer can be sent back as the other side's.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import Enum
from typing import Final, NamedTuple

SECRET_BYTES: Final = 32
"""Length of a coordinator's secret: as long as the digest that it keys (RFC 2104, section 3)."""

NONCE_BYTES: Final = 32
"""Length of a nonce. Two random ones of this length are never the same."""

_PURPOSE: Final = b"sharecoord peer link, protocol 2"


class Side(Enum):
    """The end of a link that shows a proof."""

    GATEWAY = b"gateway"
    OWNER = b"owner"


class Greeting(NamedTuple):
    """What both ends of a new link have told each other; every proof is over all of it."""

    gateway_id: str
    owner_id: str
    gateway_nonce: bytes
    owner_nonce: bytes


def proof_of(side: Side, secret: bytes, greeting: Greeting) -> bytes:
    """The proof of one end of a link: HMAC-SHA256 under the secret of its own lease row."""
    parts = (
        _PURPOSE,
        side.value,
        greeting.gateway_id.encode(),
        greeting.owner_id.encode(),
        greeting.gateway_nonce,
        greeting.owner_nonce,
    )
    # With its length before each part, no other parts make the same text.
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(secret, text, hashlib.sha256)


def proves(proof: bytes, side: Side, secret: bytes, greeting: Greeting) -> bool:
    """Whether a proof is that of the end whose lease row has this secret.

    False as well when the row has no secret (an older release, a coordinator without a fleet), and
    for a nonce of another length. The time that it takes tells nothing of the secret.
    """
    if len(secret) != SECRET_BYTES:
        return False
    if not len(greeting.gateway_nonce) == len(greeting.owner_nonce) == NONCE_BYTES:
        return False
    return hmac.compare_digest(proof, proof_of(side, secret, greeting))
