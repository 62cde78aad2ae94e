"""Who calls: credentials of a call and of its connection, and the identity that they prove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sharecoord.api.grpc.calls import ServicerContext, host_of
from sharecoord.errors import UnauthenticatedError
from sharecoord.security.authenticator import Authenticator
from sharecoord.security.guard import Guard
from sharecoord.security.principals import Caller, Credentials

AUTHORIZATION: Final = "authorization"
_CERTIFICATE: Final = "x509_pem_cert"


class Access:
    """Makes a caller of each call; the same for all services of a server."""

    def __init__(self, authenticator: Authenticator, guard: Guard, *, certificates: bool) -> None:
        """Takes what proves identities.

        Args:
            authenticator: Of this listener.
            guard: Hears of refusals.
            certificates: Whether clients show certificates: gRPC copies them for each call.
        """
        self.authenticator = authenticator
        self._guard = guard
        self._certificates = certificates

    @property
    def checks_authorization(self) -> bool:
        """Whether tokens of some kind are checked."""
        return self.authenticator.checks_authorization

    async def caller_of(self, context: ServicerContext, call: str) -> Caller:
        """The caller of a call.

        Raises:
            UnauthenticatedError: The credentials are not good, or nobody checks such ones.
            SharecoordError: As `Authenticator.identify`.
        """
        return await self.identified(lambda: self._credentials(context), host_of(context), call)

    async def identified(
        self, credentials: Callable[[], Credentials], address: str, call: str
    ) -> Caller:
        """The caller at an address who shows these credentials. Errors: as `caller_of`."""
        with self._guard.telling(Caller(address=address), call):
            shown = credentials()
            identity = self.authenticator.known(shown)
            if identity is None:
                identity = await self.authenticator.identify(shown, address)
        return Caller(identity, address)

    def check_stream(self, caller: Caller) -> None:
        """Lets a caller open another stream.

        Raises:
            QuotaExceededError: Its principal has as many as it may.
        """
        with self._guard.telling(caller, "Consume"):
            self._guard.quotas.check_stream(caller.principal)

    def _credentials(self, context: ServicerContext) -> Credentials:
        shown = [v for name, v in context.invocation_metadata() or () if name == AUTHORIZATION]
        if len(shown) > 1:
            raise UnauthenticatedError(
                f"the call has {len(shown)} authorizations; a client sends one"
            )
        authorization = shown[0] if shown else ""
        if isinstance(authorization, bytes):
            authorization = authorization.decode("latin-1")
        shown_by = context.auth_context().get(_CERTIFICATE, ()) if self._certificates else ()
        return Credentials(authorization, next(iter(shown_by), b""))
