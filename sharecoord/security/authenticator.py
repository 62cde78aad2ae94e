"""Identities of callers: which of their credentials count, and what becomes of wrong ones.

What a call brings (the authorization header) wins over its connection's certificate, that over the
mode of a Unix socket, and without any of them a caller is nobody. A credential that nobody checks
is refused, never ignored: its owner believes that it decides what the call may do.

Messages for callers never tell which names there are, and never have a secret in them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import grp
import hmac
import pwd
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sharecoord.errors import UnauthenticatedError
from sharecoord.security.files import WatchedFiles
from sharecoord.security.principals import (
    NOBODY,
    USER,
    Credentials,
    Identity,
    Mechanism,
    Principal,
    UnixClock,
    unix_ms,
)
from sharecoord.security.scram import HASHES, ScramServer
from sharecoord.security.slowdown import Slowdown
from sharecoord.security.tokens import SETTING as TOKENS_SETTING
from sharecoord.security.tokens import Tokens

if TYPE_CHECKING:
    # PyJWT and cryptography take memory, and are loaded only where they are used.
    from sharecoord.security.certificates import CertificateNames
    from sharecoord.security.oidc import Oidc

AUTHORIZATION_CHARS_MAX: Final = 17 << 10
"""Longest authorization that is read: the longest token of `oidc`, and the word before it."""

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"

_OR_NOT: Final = (
    "or remove the credentials from the client (sasl.*; security.protocol is then ssl or plaintext)"
)
_NO_TOKENS: Final = (
    "this coordinator checks no tokens and passwords, so it refuses a call that brings one instead "
    f"of ignoring it. Set {TOKENS_SETTING} of the coordinator, {_OR_NOT}"
)
_NO_OIDC: Final = (
    "this coordinator checks no JSON Web Tokens, so it refuses a call that brings one instead of "
    f"ignoring it. Set security.oidc.issuer of the coordinator, {_OR_NOT}"
)
_NO_SCHEME: Final = (
    "the authorization of the call is of no kind that is checked here. Let the client send "
    f"`Bearer TOKEN` or `Basic` with user name and password, {_OR_NOT}"
)
_NO_CERTIFICATES: Final = (
    "this coordinator checks no client certificates. Set tls.client.ca.file of the coordinator, or "
    "remove the certificate from the client"
)
_WRONG: Final = (
    "the token, or the user name and password, is not good here (any more). Ask the operator of "
    "the coordinator for a new token (sharecoord tokens create)"
)
_ENDED: Final = (
    "the credentials have expired. Connect again with new ones (a token, or a certificate)"
)
_NOBODY: Final = (
    "the call shows no credentials, and this coordinator serves nobody without. Give the client a "
    "token (sasl.*) or a certificate (ssl.*) that the coordinator accepts"
)


class Authenticator:
    """Makes an identity of what a call shows."""

    def __init__(
        self,
        *,
        tokens: WatchedFiles[Tokens] | None = None,
        oidc: Oidc | None = None,
        certificates: CertificateNames | None = None,
        socket: Identity = NOBODY,
        must_prove: bool = False,
        now_ms: UnixClock = unix_ms,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Takes what is checked; None = it is not.

        Args:
            tokens: The file of `security.tokens.file`.
            oidc: JSON Web Tokens.
            certificates: Names in clients' certificates.
            socket: Of `socket_identity`, where the coordinator listens at a Unix socket.
            must_prove: Whether a caller without credentials is refused. Otherwise the caller is
                `User:anonymous`, and the rules say what that one may do.
            now_ms: The clock by which credentials end.
            sleep: Waits some seconds.
        """
        self._tokens = tokens
        self._oidc = oidc
        self._certificates = certificates
        self.socket = socket
        """Who connects to the Unix socket, once the coordinator listens there."""
        self._must_prove = must_prove
        self._now_ms = now_ms
        self._slowdown = Slowdown(now_ms, sleep)
        self._fake_key = secrets.token_bytes(32)

    @property
    def checks_authorization(self) -> bool:
        """Whether tokens of some kind are checked."""
        return self._tokens is not None or self._oidc is not None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of SASL by which somebody can be known here, as the files are now."""
        tokens = None if self._tokens is None else self._tokens.value
        scram = [each for each in HASHES if tokens is not None and each in tokens.scram_mechanisms]
        plain = [PLAIN] if tokens is not None else []
        return (*plain, *scram, *([OAUTHBEARER] if self._oidc is not None else []))

    def scram(self, mechanism: str) -> ScramServer[Identity]:
        """A new exchange of SCRAM."""
        assert self._tokens is not None, "a mechanism of the entries"
        tokens = self._tokens.value
        return ScramServer(
            mechanism, lambda name: tokens.verifiers(mechanism, name), fake_key=self._fake_key
        )

    @asynccontextmanager
    async def slowing(self, address: str) -> AsyncIterator[None]:
        """Lets a caller wait who fails again and again; errors as `identify`."""
        try:
            yield
        except UnauthenticatedError:
            await self._slowdown.failed(address)
            raise

    def known(self, credentials: Credentials) -> Identity | None:
        """The identity, where it can be told at once; None = `identify` has to be asked."""
        try:
            return self._at_once(credentials)
        except UnauthenticatedError:
            return None

    async def identify(self, credentials: Credentials, address: str) -> Identity:
        """The identity of a caller. One who fails again and again waits before the answer.

        Args:
            credentials: What the call and its connection show.
            address: Where the call comes from: `HOST` or `HOST:PORT`.

        Raises:
            UnauthenticatedError: The credentials are not good, or nobody checks such ones.
            LimitExceededError: As before, and too many callers of the address wait already.
            KeysUnavailableError: The identity provider's keys can not be had; nobody knows.
        """
        async with self.slowing(address):
            identity = self._at_once(credentials)
            if identity is None:
                assert self._oidc is not None, "all else is told at once"
                identity = await self._oidc.identify(_parts(credentials.authorization)[1])
            return identity

    def holds(self, identity: Identity) -> bool:
        """Whether an identity that was proven before may go on, as of a stream that is open.

        It may not once its credential has ended, or its token was taken out of the file, or has
        other groups or another end there. Of a JSON Web Token nobody hears before its end.
        """
        if identity.ends_ms is not None and identity.ends_ms <= self._now_ms():
            return False
        if identity.mechanism is Mechanism.TOKEN:
            return self._tokens is not None and self._tokens.value.has(identity)
        return True

    def _at_once(self, credentials: Credentials) -> Identity | None:
        """The identity; None = a JSON Web Token that has to be checked first."""
        if credentials.authorization:
            identity = self._authorized(credentials.authorization)
        elif credentials.certificate:
            identity = self._certified(credentials.certificate)
        elif self._must_prove and self.socket == NOBODY:
            raise UnauthenticatedError(_NOBODY)
        else:
            return self.socket
        return None if identity is None else self.good_still(identity)

    def good_still(self, identity: Identity) -> Identity:
        """An identity whose credential has not ended.

        Raises:
            UnauthenticatedError: It has.
        """
        if identity.ends_ms is None or identity.ends_ms > self._now_ms():
            return identity
        raise UnauthenticatedError(_ENDED)

    def _certified(self, certificate: bytes) -> Identity:
        if self._certificates is None:
            raise UnauthenticatedError(_NO_CERTIFICATES)
        return self._certificates.identity_of(certificate)

    def _authorized(self, authorization: str) -> Identity | None:
        scheme, value = _parts(authorization)
        if scheme == "bearer" and value.count(".") == 2:
            if self._oidc is None:
                raise UnauthenticatedError(_NO_OIDC)
            return self._oidc.known(value)
        if scheme not in ("bearer", "basic"):
            raise UnauthenticatedError(_NO_SCHEME)
        if self._tokens is None:
            raise UnauthenticatedError(_NO_TOKENS)
        name, secret = (None, value) if scheme == "bearer" else _name_and_password(value)
        identity = self._tokens.value.find(secret)
        if identity is None or (name is not None and not _is_of(identity, name)):
            raise UnauthenticatedError(_WRONG)
        return identity


def _parts(authorization: str) -> tuple[str, str]:
    """Scheme and value of an authorization header.

    Raises:
        UnauthenticatedError: It is too long to be read.
    """
    if len(authorization) > AUTHORIZATION_CHARS_MAX:
        raise UnauthenticatedError(
            f"the authorization of the call has more than {AUTHORIZATION_CHARS_MAX} characters; "
            "use a shorter token"
        )
    scheme, _, value = authorization.partition(" ")
    return scheme.lower(), value.strip()


def _name_and_password(value: str) -> tuple[str, str]:
    """The parts of `Basic` (RFC 7617): the name ends at the first colon."""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        raise UnauthenticatedError(_NO_SCHEME) from None
    name, _, password = text.partition(":")
    return name, password


def _is_of(identity: Identity, name: str) -> bool:
    return hmac.compare_digest(identity.principal.name.encode(), (USER + name).encode())


# -- Unix sockets ---------------------------------------------------------------------------------


def socket_identity(path: Path, mode: int) -> Identity:
    """Who connects to a Unix socket, as its file's mode tells; the file must be there.

    gRPC does not show the user at the other end, but the kernel lets only those connect who may
    write to the file (and root, who may do everything anyway). With 0600 that is the file's owner,
    `User:` and the owner's name. With 0660 nobody knows which user of the file's group it is, so
    the principal is `User:unix-group-` and the group's name. With 0666 it is nobody. A user or a
    group without a name has its number in place of the name.

    Raises:
        OSError: There is no such file.
    """
    if mode & 0o006:
        return NOBODY
    status = path.stat()
    is_open_to_group = bool(mode & 0o060)
    name = _group_name(status.st_gid) if is_open_to_group else _user_name(status.st_uid)
    return Identity(Principal(USER + name), Mechanism.SOCKET)


GROUP_PREFIX: Final = "unix-group-"
"""Begins the name of the principal of everybody whom a socket's group lets in."""


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return GROUP_PREFIX + grp.getgrgid(gid).gr_name
    except KeyError:
        return f"{GROUP_PREFIX}{gid}"
