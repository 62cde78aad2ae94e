"""The keys of an identity provider at an address, asked for again and again."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

import structlog

from sharecoord.config.endpoints import TcpAddress
from sharecoord.errors import InvalidConfigError, KeysUnavailableError
from sharecoord.security.files import WatchedFiles, read_file
from sharecoord.security.keys import SETTING, FileKeys, KeySet, read_key_file, read_key_set

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = structlog.get_logger(__name__)

CA_SETTING: Final = "security.oidc.jwks.ca.file"

REFRESH_S: Final = 300.0
"""How often the keys are asked for: so long does a key count that a provider took back."""

REFRESH_MIN_S: Final = 10.0
"""Least time between two questions, whatever tokens come in: nobody can make this process flood the
provider with tokens of made-up key ids."""

ANSWER_MAX_S: Final = 5.0
"""Longest time for the connection, and then for the whole answer."""

ANSWER_MAX_BYTES: Final = 1 << 20
"""Largest answer: a key set has a few kilobytes."""

WAITING_MAX: Final = 1_024
"""Callers that wait for one answer at a time; each holds a call open."""


class RemoteKeys:
    """Keys at an address, asked for in a thread; the last good ones hold while it is away."""

    def __init__(
        self,
        address: str,
        *,
        ca_file: str = "",
        answer_max_s: float = ANSWER_MAX_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the values of `security.oidc.jwks` and `security.oidc.jwks.ca.file`.

        Raises:
            InvalidConfigError: The address is none, or not a safe one; or the file is bad.
        """
        self._address = _parse_address(address)
        self._ca_file = ca_file
        self._answer_max_s = answer_max_s
        self._monotonic_s = monotonic_s
        self.value: KeySet | None = None
        self.problem = "the keys have not been asked for yet"
        """Why the latest question had no good answer; "" = it had one."""
        self._body = b""
        self._asked_s: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._waiting = 0
        if self._address.scheme == "https":
            self._context()
        elif ca_file:
            raise InvalidConfigError(f"{CA_SETTING} is set, and {SETTING} is no `https://` address")

    async def run(self) -> None:
        """Asks for the keys again and again, until it is cancelled."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(REFRESH_MIN_S if self.problem else REFRESH_S)
        finally:
            if self._asking is not None:
                self._asking.cancel()

    async def look_for(self, key_id: str) -> None:
        """Asks for the keys, unless that was done a moment ago.

        Raises:
            KeysUnavailableError: There is no fresh answer, so nobody knows of a key of this id. A
                provider may sign with a new key from the moment at which it has one.
        """
        rest_s = 0.0
        if self._asking is None and self._asked_s is not None:
            rest_s = self._asked_s + REFRESH_MIN_S - self._monotonic_s()
        if rest_s <= 0 and self._waiting < WAITING_MAX:
            await self.refresh()
            if not self.problem:
                return
            rest_s = REFRESH_MIN_S
        # The problem itself is for the log: a stranger needs no address of the provider.
        raise KeysUnavailableError(
            "the key of the token is not known, and the identity provider can not be asked for it "
            "at the moment; try again",
            retry_after_ms=max(1_000, round(rest_s * 1000)),
        )

    async def refresh(self) -> None:
        """Asks for the keys, or waits for the answer that others wait for already."""
        if self._asking is None:
            self._asked_s = self._monotonic_s()
            self._asking = asyncio.create_task(self._ask())
        self._waiting += 1
        try:
            # A caller that goes away does not take the answer from the others.
            await asyncio.shield(self._asking)
        finally:
            self._waiting -= 1

    async def _ask(self) -> None:
        problem = ""
        try:
            body = await asyncio.to_thread(self._fetch)
            if body != self._body:
                self.value = read_key_set(body)
                self._body = body
        except InvalidConfigError as error:
            problem = error.message
        except (OSError, HTTPException, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            problem = f"the keys can not be had from {self._address.netloc}: {why}"
        finally:
            self._asking = None
        if problem and problem != self.problem:
            log.error(
                "no new keys of the identity provider; those that are known hold", why=problem
            )
        elif self.problem and not problem:
            log.info("keys of the identity provider are there", address=self._address.netloc)
        self.problem = problem

    def _fetch(self) -> bytes:
        """The answer of the server.

        `http.client` follows no redirection and knows no proxy, so nothing in the environment or
        in an answer leads the question elsewhere.
        """
        connection = self._connection()
        try:
            query = f"?{self._address.query}" if self._address.query else ""
            connection.request("GET", (self._address.path or "/") + query, headers=_HEADERS)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise HTTPException(f"the answer is {response.status} instead of 200")
                body = response.read(ANSWER_MAX_BYTES + 1)
        finally:
            connection.close()
        if len(body) > ANSWER_MAX_BYTES:
            raise HTTPException(f"the answer has more than {ANSWER_MAX_BYTES} bytes")
        return body

    def _connection(self) -> HTTPConnection:
        host, port, wait_s = self._address.hostname or "", self._address.port, self._answer_max_s
        if self._address.scheme == "http":
            connection = HTTPConnection(host, port, timeout=wait_s)
        else:
            connection = HTTPSConnection(host, port, timeout=wait_s, context=self._context())
        connection.response_class = _TimedResponse
        return connection

    def _context(self) -> ssl.SSLContext:
        """Made for each question, so that new authorities need no restart."""
        if not self._ca_file:
            return ssl.create_default_context()
        content = read_file(CA_SETTING, self._ca_file)
        try:
            # Between its certificates a bundle has the names of their owners, in any letters.
            return ssl.create_default_context(cadata=content.decode("ascii", errors="ignore"))
        except (ssl.SSLError, ValueError) as error:
            raise InvalidConfigError(
                f"{CA_SETTING}: {self._ca_file!r} has no certificates as PEM"
            ) from error


_HEADERS: Final = {"Accept": "application/json"}


class _TimedResponse(HTTPResponse):
    """An answer that has to be whole within the socket's time-out.

    A socket's own time-out is for each piece: one byte now and then would keep a thread for days.
    """

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        raw = self.fp.detach()
        self.fp = io.BufferedReader(_Timed(raw, sock))


class _Timed(io.RawIOBase):
    """What comes from a socket until its time-out, which begins now."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket) -> None:
        self._raw = raw
        self._sock = sock
        self._until_s = time.monotonic() + (sock.gettimeout() or ANSWER_MAX_S)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        rest_s = self._until_s - time.monotonic()
        if rest_s <= 0:
            raise TimeoutError("the answer is not whole in time")
        self._sock.settimeout(rest_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def keys_of(place: str, ca_file: str) -> FileKeys | RemoteKeys:
    """Where the keys come from, by the values of `security.oidc.jwks` and `….jwks.ca.file`.

    Raises:
        InvalidConfigError: The address is not a safe one, or a file is bad.
    """
    if "://" in place:
        return RemoteKeys(place, ca_file=ca_file)
    if ca_file:
        raise InvalidConfigError(f"{CA_SETTING} is set, and {SETTING} is a file. Remove one.")
    return FileKeys(WatchedFiles({SETTING: place}, read_key_file))


def _parse_address(text: str) -> SplitResult:
    problem = "it must be an `https://` address, such as https://idp.example/jwks.json, or a file"
    try:
        address = urlsplit(text)
        host, _ = address.hostname, address.port
    except ValueError:
        raise InvalidConfigError(f"{SETTING}: {problem}") from None
    if not host or address.scheme not in ("http", "https"):
        raise InvalidConfigError(f"{SETTING}: {problem}")
    if address.scheme == "http" and not TcpAddress(host, 0).is_loopback:
        raise InvalidConfigError(
            f"{SETTING}: {host} is not this machine, and over `http://` everybody on the way can "
            "replace the keys; use `https://`"
        )
    if "@" in address.netloc or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidConfigError(
            f"{SETTING}: the address has a user name, or characters that none has; keys are public"
        )
    return address
