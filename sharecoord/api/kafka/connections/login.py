"""Proofs of who is at the other end of a connection: SASL, certificates, how long they hold."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from sharecoord.api.kafka.codec import Head, ProtocolError, make
from sharecoord.errors import SharecoordError, UnauthenticatedError
from sharecoord.security.authenticator import Authenticator
from sharecoord.security.guard import Guard
from sharecoord.security.principals import Caller, Credentials, Identity
from sharecoord.security.sasl import SaslExchange

log = structlog.get_logger(__name__)

_CALL: Final = "SaslAuthenticate"
_NO_TIME: Final = timedelta(0)
_NEVER: Final = 1 << 62
"""Milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Access:
    """The proofs that the port takes of who connects."""

    authenticator: Authenticator
    guard: Guard
    reauthentication_ms: int = 0
    """After this time a client has to prove again who it is (KIP-368); 0 = when its credential
    ends."""


class Login:
    """The principal that one connection has proven to be."""

    def __init__(self, access: Access, certificate: bytes, address: str) -> None:
        """Takes the certificate that the client has shown, as PEM, and where it connects from."""
        self._access = access
        self._shown = Credentials(certificate=certificate)
        self._address = address
        self._exchange: SaslExchange | None = None
        self._ends_ms = _NEVER
        # A certificate counts unless SASL follows, and so does that nobody asks for either.
        self._without_sasl = access.authenticator.known(self._shown)
        self._caller: Caller | None = None
        self.has_failed = False
        """Whether the connection ends once the answer is written."""

    @property
    def is_known(self) -> bool:
        """Whether the client has proven who it is, or does not need to."""
        return self._caller is not None or self._without_sasl is not None

    async def caller(self, call: str) -> Caller:
        """The caller of a request that is none of SASL.

        Raises:
            ProtocolError: The client has not proven who it is, or that has ended.
        """
        if self._exchange is not None:
            raise ProtocolError(f"{call} before the end of the SASL exchange")
        try:
            with self._access.guard.telling(self._caller or Caller(address=self._address), call):
                if self._caller is None:
                    identity = self._without_sasl or await self._identified()
                    self._caller = Caller(identity, self._address)
                if not self._holds(self._caller.identity):
                    raise UnauthenticatedError(
                        f"the credentials of {self._caller.principal} have ended or were revoked: "
                        "connect again with new ones"
                    )
        except SharecoordError as error:
            raise ProtocolError(f"{call}: {error.message}") from error
        return self._caller

    async def _identified(self) -> Identity:
        return await self._access.authenticator.identify(self._shown, self._address)

    def _holds(self, identity: Identity) -> bool:
        access = self._access
        return access.guard.now_ms() < self._ends_ms and access.authenticator.holds(identity)

    # -- SASL ------------------------------------------------------------------------------------

    def handshake(self, head: Head, request: Any) -> Any:
        """Answers SaslHandshake: begins an exchange, the first one or one that renews it."""
        authenticator, wanted = self._access.authenticator, request.mechanism
        mechanisms = authenticator.mechanisms
        error, why = ErrorCode.none, ""
        if not mechanisms or self._exchange is not None:
            # As a broker answers at a listener without SASL.
            error, why = ErrorCode.illegal_sasl_state, _out_of_turn(has_sasl=bool(mechanisms))
        elif head.version == 0:
            error, why = ErrorCode.unsupported_version, "SaslHandshake of version 0: 1 is wanted"
        elif wanted not in mechanisms:
            error = ErrorCode.unsupported_sasl_mechanism
            why = f"the SASL mechanism {wanted[:64]!r} is none of {', '.join(mechanisms)}"
        else:
            self._exchange = SaslExchange(wanted, authenticator, self._address)
        if why:
            self._refuse(UnauthenticatedError(why))
        # As at a broker: those that there are, unless nobody should ask now.
        told = () if error is ErrorCode.illegal_sasl_state else mechanisms
        return make(head, "SaslHandshakeResponse", error_code=error, mechanisms=told)

    async def authenticate(self, head: Head, request: Any) -> Any:
        """Answers SaslAuthenticate: the next message of an exchange.

        Raises:
            ProtocolError: Nobody can say now whether the credentials are good; try again.
        """
        exchange = self._exchange
        if exchange is None:
            error = UnauthenticatedError(_out_of_turn(has_sasl=True))
            self._refuse(error)
            return _authenticated(head, ErrorCode.illegal_sasl_state, error.message)
        try:
            answer, identity = await exchange.step(request.auth_bytes)
            if identity is not None:
                self._prove(identity)
        except UnauthenticatedError as error:
            self._refuse(error)
            return _authenticated(head, ErrorCode.sasl_authentication_failed, error.message)
        except SharecoordError as error:
            raise ProtocolError(f"{_CALL}: {error.message}") from error
        return _authenticated(head, ErrorCode.none, None, answer, self._lifetime())

    def _prove(self, identity: Identity) -> None:
        """The exchange is over: the connection is this principal's, for as long as that holds."""
        former, access = self._caller, self._access
        if former is not None and former.principal.name != identity.principal.name:
            raise UnauthenticatedError(
                f"the connection is {former.principal}'s, and stays so: connect anew as "
                f"{identity.principal}"
            )
        bound_ms = access.reauthentication_ms
        self._ends_ms = min(
            _NEVER if identity.ends_ms is None else identity.ends_ms,
            access.guard.now_ms() + bound_ms if bound_ms else _NEVER,
        )
        self._caller, self._exchange = Caller(identity, self._address), None

    def _lifetime(self) -> timedelta:
        """How long the proof holds; 0 = nothing ends it, or the exchange goes on."""
        if self._exchange is not None or self._ends_ms == _NEVER:
            return _NO_TIME
        return timedelta(milliseconds=max(1, self._ends_ms - self._access.guard.now_ms()))

    def _refuse(self, error: UnauthenticatedError) -> None:
        self.has_failed, self._exchange = True, None
        who = self._caller or Caller(address=self._address)
        self._access.guard.tell(who, _CALL, error)


def _out_of_turn(*, has_sasl: bool) -> str:
    if has_sasl:
        return "a request of SASL out of turn: SaslHandshake comes first, once for each exchange"
    return (
        "this coordinator checks no SASL, so it refuses a client that wants it. Set "
        "security.tokens.file or security.oidc.issuer of the coordinator, or remove sasl.* from "
        "the client (security.protocol is then ssl or plaintext)"
    )


def _authenticated(
    head: Head,
    error: ErrorCode,
    message: str | None,
    answer: bytes = b"",
    lifetime: timedelta = _NO_TIME,
) -> Any:
    return make(
        head,
        "SaslAuthenticateResponse",
        error_code=error,
        error_message=message,
        auth_bytes=answer,
        session_lifetime=lifetime,
    )
