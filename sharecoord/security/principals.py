"""Who speaks: principals, and the ways in which a caller proves to be one (design 14).

Every protocol makes `Credentials` of what its connection and its call show; an `Authenticator`
makes an `Identity` of them. What nobody checks is refused, never ignored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final


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


ANONYMOUS: Final = Principal("User:anonymous")
"""Everybody who shows no credentials where none are asked for."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal, how it was proven, and until when that holds."""

    principal: Principal
    mechanism: Mechanism = Mechanism.NONE
    ends_ms: int | None = None
    """Unix time at which the credential ends; None = it has no end."""


NOBODY: Final = Identity(ANONYMOUS)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a connection and a call show. None of it appears in `repr`."""

    authorization: str = field(default="", repr=False)
    """The value of HTTP's authorization header: `Bearer TOKEN` or `Basic BASE64`."""
    certificate: bytes = field(default=b"", repr=False)
    """The client's own certificate as PEM, which TLS has verified already."""
