"""JSON Web Tokens of an identity provider (OpenID Connect), checked by PyJWT.

A signature is checked on the loop: of RSA with 2048 bits in 0.07 ms, of the slowest algorithm in
0.5 ms, and to hand a call to a thread takes 0.05 ms by itself. Each token is checked once and then
known by its SHA-256, until it ends or the keys change.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import jwt

from sharecoord.errors import KeysUnavailableError, UnauthenticatedError
from sharecoord.security.keys import ALGORITHMS, Keys, KeySet
from sharecoord.security.principals import (
    USER,
    Identity,
    Mechanism,
    Principal,
    UnixClock,
    name_problem,
    user_problem,
)

TOKEN_CHARS_MAX: Final = 16 << 10
"""Longest token that is read: gRPC takes no larger headers, and tokens have 1 to 4 KiB."""

IDENTITIES_KEPT: Final = 16_384
"""Tokens that are known after their first check, the latest used: some 10 MB."""

_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999: later ends are no dates."""

_ASK: Final = "ask the identity provider for another token"


class Oidc:
    """Makes identities of the tokens of one issuer."""

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        keys: Keys,
        principal_claim: str,
        groups_claim: str,
        clock_skew_ms: int,
        now_ms: UnixClock,
    ) -> None:
        """Takes the values of `security.oidc.*`, and where the issuer's keys come from."""
        self._issuer = issuer
        self._audience = audience
        self._keys = keys
        self._principal_claim = principal_claim
        self._groups_claim = groups_claim
        self._skew_ms = clock_skew_ms
        self._now_ms = now_ms
        self._known: OrderedDict[bytes, Identity] = OrderedDict()
        self._known_by: KeySet | None = None

    def known(self, token: str) -> Identity | None:
        """The identity of a token that was checked before; None = it has to be checked."""
        if self._known_by is not self._keys.value:
            self._known.clear()
            return None
        digest = _digest(token)
        identity = self._known.get(digest)
        if identity is None:
            return None
        if identity.ends_ms is not None and identity.ends_ms <= self._now_ms():
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return identity

    async def identify(self, token: str) -> Identity:
        """The identity that a token proves; waits only where keys have to be asked for.

        Raises:
            UnauthenticatedError: The token is not good; says which claim or setting is concerned.
            KeysUnavailableError: There are no keys to check it with.
        """
        if len(token) > TOKEN_CHARS_MAX:
            raise UnauthenticatedError(
                f"the token has more than {TOKEN_CHARS_MAX} characters; ask the identity provider "
                "for one with fewer claims"
            )
        identity = self.known(token)
        if identity is not None:
            return identity
        algorithm, key_id = _header(token)
        if self._keys.value is None or not self._keys.value.has(key_id):
            await self._keys.look_for(key_id)
        keys = self._keys.value
        if keys is None:
            raise KeysUnavailableError("there are no keys to check the token with; try again")
        identity = self._identity(self._claims(token, keys, algorithm, key_id))
        self._keep(token, identity, keys)
        return identity

    def _claims(self, token: str, keys: KeySet, algorithm: str, key_id: str) -> Mapping[str, Any]:
        """What a token says, once its signature, issuer and audience are right."""
        error: jwt.PyJWTError | None = None
        for key in keys.with_id(key_id, algorithm):
            try:
                return jwt.decode(
                    token,
                    key.public,
                    algorithms=[algorithm],
                    audience=self._audience,
                    issuer=self._issuer,
                    options=_OPTIONS,
                )
            except jwt.InvalidSignatureError as wrong:
                error = wrong
            except jwt.PyJWTError as wrong:
                raise UnauthenticatedError(_problem(wrong)) from wrong
        raise UnauthenticatedError(
            "the token is not signed with a key of the identity provider of this coordinator "
            f"(security.oidc.jwks); {_ASK}"
        ) from error

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        """The identity that claims tell, by this machine's clock.

        PyJWT would go by a clock of its own.
        """
        now_ms = self._now_ms()
        for claim in ("nbf", "iat"):
            if claim in claims and _seconds(claims, claim) * 1000 > now_ms + self._skew_ms:
                raise UnauthenticatedError(
                    f"the token is not valid yet (its `{claim}` is in the future); set the clock "
                    "of the identity provider, or security.oidc.clock.skew.ms of the coordinator"
                )
        # The same moment for new calls and for streams that are open.
        ends_ms = round(_seconds(claims, "exp") * 1000) + self._skew_ms
        if ends_ms <= now_ms:
            raise UnauthenticatedError(f"the token has expired; {_ASK}")
        groups = frozenset(self._groups(claims.get(self._groups_claim)))
        return Identity(Principal(USER + self._name(claims), groups), Mechanism.OIDC, ends_ms)

    def _name(self, claims: Mapping[str, Any]) -> str:
        name = claims.get(self._principal_claim)
        problem = user_problem(name) if isinstance(name, str) else "is not there as a text"
        if problem:
            raise UnauthenticatedError(
                f"the name in the token's claim `{self._principal_claim}` {problem} "
                f"(security.oidc.principal.claim of the coordinator); {_ASK}"
            )
        return str(name)

    def _groups(self, found: object) -> list[str]:
        groups = [found] if isinstance(found, str) else found
        if groups is None:
            return []
        if isinstance(groups, list) and not any(
            name_problem(each) if isinstance(each, str) else True for each in groups
        ):
            return groups
        # A group that is left out could be one to which a rule denies something.
        raise UnauthenticatedError(
            f"the token's claim `{self._groups_claim}` is no list of names that can be seen "
            f"(security.oidc.groups.claim of the coordinator); {_ASK}"
        )

    def _keep(self, token: str, identity: Identity, keys: KeySet) -> None:
        if self._known_by is not keys:
            self._known.clear()
            self._known_by = keys
        self._known[_digest(token)] = identity
        if len(self._known) > IDENTITIES_KEPT:
            self._known.popitem(last=False)


_OPTIONS: Final[Any] = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
"""What PyJWT checks: everything but the times, which `Oidc` compares with its own clock."""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _header(token: str) -> tuple[str, str]:
    """The algorithm and the key id ("" = none) of a token: hints until the signature is checked.

    Raises:
        UnauthenticatedError: It is no token, or is not signed as tokens have to be.
    """
    try:
        # The other parts are read once, when the signature is checked.
        header = jwt.get_unverified_header(token.partition(".")[0] + "..")
    except (jwt.PyJWTError, UnicodeError) as error:
        raise UnauthenticatedError(_problem(error)) from error
    algorithm, key_id = header.get("alg"), header.get("kid", "")
    if algorithm not in ALGORITHMS:
        raise UnauthenticatedError(
            f"the token is not signed with one of {', '.join(ALGORITHMS)}; let the identity "
            "provider use one of them"
        )
    return str(algorithm), str(key_id)


def _problem(error: Exception) -> str:
    if isinstance(error, jwt.InvalidAudienceError):
        return f"the token is for another audience than security.oidc.audience; {_ASK}"
    if isinstance(error, jwt.InvalidIssuerError):
        return f"the token is of another issuer than security.oidc.issuer; {_ASK}"
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token has no `{error.claim}`; {_ASK}"
    return f"the credentials are no JSON Web Token that can be read; {_ASK}"


def _seconds(claims: Mapping[str, Any], claim: str) -> float:
    """The time of a claim, a number of seconds (RFC 7519)."""
    found = claims[claim]
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or (isinstance(found, float) and not math.isfinite(found)):
        raise UnauthenticatedError(f"the token's `{claim}` is no time; {_ASK}")
    return float(max(0, min(found, _LATEST_S)))
