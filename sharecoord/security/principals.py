"""Who speaks: principals, and the ways in which a caller proves to be one (design 14).

Every protocol makes `Credentials` of what its connection and its call show; an `Authenticator`
makes an `Identity` of them. What nobody checks is refused, never ignored.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

NAME_CHARS_MAX: Final = 2_048
"""Longest name of a user or a group: that of a SPIFFE id, the longest of all mechanisms."""

UnixClock = Callable[[], int]
"""Milliseconds since the epoch."""


def unix_ms() -> int:
    """The time by this machine's clock, which certificates and tokens are written for."""
    return time.time_ns() // 1_000_000


class Mechanism(enum.StrEnum):
    """How a caller has proven who it is."""

    NONE = "none"
    SOCKET = "socket"
    CERTIFICATE = "certificate"
    TOKEN = "token"
    OIDC = "oidc"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, as Kafka writes one, with the groups that its identity provider names."""

    name: str
    """`User:` and the name that was proven, such as `User:alice`."""
    groups: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return self.name


USER: Final = "User:"
"""Begins the name of every principal, as Kafka writes it."""


def name_problem(name: str) -> str:
    """Why no user or group can have this name, as the end of "the name …"; "" = one can.

    Names are compared by exact code points: `Anna` and `anna` are two users, and so are a name in
    Unicode's form NFC and the same one in NFD. Characters that nobody sees are refused, because a
    reader of rules or of the audit log would take two names for the same.
    """
    if not name:
        return "is empty"
    if len(name) > NAME_CHARS_MAX:
        return f"has more than {NAME_CHARS_MAX} characters"
    if not name.isprintable():
        return "has a control character, or another one that can not be seen"
    return ""


def user_problem(name: str) -> str:
    """As `name_problem`, of a user who has proven to be somebody."""
    # In every spelling: nobody should take `User:Anonymous` for a caller without credentials.
    if (USER + name).casefold() == ANONYMOUS.name.casefold():
        return "is kept for callers who show no credentials"
    return name_problem(name)


ANONYMOUS: Final = Principal("User:anonymous")
"""Everybody who shows no credentials where none are asked for."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal, how it was proven, and until when that holds."""

    principal: Principal
    mechanism: Mechanism = Mechanism.NONE
    ends_ms: int | None = None
    """Unix time at which the credential ends; None = it has no end."""
    proof: bytes = field(default=b"", repr=False)
    """SHA-256 of a token of a file, by which its entry is found again; else empty."""


NOBODY: Final = Identity(ANONYMOUS)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a connection and a call show. None of it appears in `repr`."""

    authorization: str = field(default="", repr=False)
    """The value of HTTP's authorization header: `Bearer TOKEN` or `Basic BASE64`."""
    certificate: bytes = field(default=b"", repr=False)
    """The client's own certificate as PEM, which TLS has verified already."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody at the other end of a connection: who, and where."""

    identity: Identity = NOBODY
    address: str = ""
    """`HOST:PORT`, or the path of a Unix socket; "" = inside of this process."""

    @property
    def principal(self) -> Principal:
        """Who it is."""
        return self.identity.principal
