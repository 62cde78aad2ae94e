"""One broker of the cluster: its connection, kept open while it is used, and what it can do."""

from __future__ import annotations

import asyncio
import io
import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from kio.schema.api_versions.v0.request import ApiVersionsRequest as ApiVersionsRequest0
from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponse0
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate import v1 as authenticate_v1
from kio.schema.sasl_authenticate import v2 as authenticate_v2
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader, entity_writer

from sharecoord import __version__
from sharecoord.errors import (
    InvalidConfigError,
    KafkaUnavailableError,
    SharecoordError,
    UnauthenticatedError,
)
from sharecoord.kafka.wire.connection import Connection, ConnectionOptions, Endpoint
from sharecoord.kafka.wire.faults import printable, unavailable
from sharecoord.kafka.wire.fields import read_tags
from sharecoord.kafka.wire.keys import Settings, flag, number
from sharecoord.kafka.wire.sasl import SaslExchange
from sharecoord.kafka.wire.security import Login, Security

R = TypeVar("R")

CLIENT_NAME: Final = "sharecoord"

REAUTHENTICATE_PART: Final = 0.85
"""Of a session's lifetime (KIP-368): after it the connection logs in again, as Kafka's client."""

REAUTHENTICATE_BEFORE_S: Final = 1.0
"""At least so long before the end: a request that a slow broker reads after it costs the
connection."""

REAUTHENTICATE_MIN_S: Final = 1.1
"""A broker takes no second log-in within a second."""

TOKEN_AGAIN_S: Final = 5.0
"""A log-in that found no token is tried again so soon, while the session lasts."""

JITTER: Final = (0.75, 1.5)
"""Of a back-off, as librdkafka has it: brokers' clients do not come back all at once."""

CLIENT_ID_BYTES_MAX: Final = 32767
"""The length is two bytes in a request."""

_MS: Final = 1000
_HOUR_MS: Final = 3_600_000
_FAMILIES: Final = {
    "any": socket.AF_UNSPEC,
    "v4": socket.AF_INET,
    "v6": socket.AF_INET6,
}


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What settings say about connections; one for all brokers."""

    client_id: str = CLIENT_NAME
    timeout_s: float = 60.0
    """Longest wait for an answer, where the caller names none."""
    backoff_s: float = 0.1
    """Between two attempts to connect; doubles with each that fails."""
    backoff_max_s: float = 2.0
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """By librdkafka's keys, bounds and defaults.

        Two defaults are others: `reconnect.backoff.max.ms` is 2 s, so that reading goes on soon
        after a broker is back, and `connections.max.idle.ms` 9 minutes as in Kafka's own client,
        under the broker's 10.

        Raises:
            InvalidConfigError: A value is malformed or out of bounds.
        """

        def seconds(key: str, default_ms: int, low_ms: int, high_ms: int) -> float:
            bounds = (low_ms, high_ms)
            return number(settings, key, default=default_ms, bounds=bounds) / _MS

        client_id = str(settings.get("client.id") or CLIENT_NAME)
        if len(client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise InvalidConfigError(f"kafka.client.id has more than {CLIENT_ID_BYTES_MAX} bytes")
        family = str(settings.get("broker.address.family", "any")).lower()
        if family not in _FAMILIES:
            raise InvalidConfigError(
                f"kafka.broker.address.family is {family!r}; it is any, v4 or v6"
            )
        return cls(
            client_id=client_id,
            timeout_s=seconds("socket.timeout.ms", 60_000, 10, 300_000),
            backoff_s=seconds("reconnect.backoff.ms", 100, 0, _HOUR_MS),
            backoff_max_s=seconds("reconnect.backoff.max.ms", 2_000, 0, _HOUR_MS),
            connection=ConnectionOptions(
                answer_bytes_max=number(
                    settings,
                    "receive.message.max.bytes",
                    default=100_000_000,
                    bounds=(1000, 2_147_483_647),
                ),
                setup_timeout_s=seconds(
                    "socket.connection.setup.timeout.ms", 30_000, 1000, 2_147_483_647
                ),
                idle_s=seconds("connections.max.idle.ms", 540_000, 0, 2_147_483_647),
                family=_FAMILIES[family],
                keepalive=flag(settings, "socket.keepalive.enable", default=False),
            ),
        )


class Broker:
    """A broker: calls go out on one connection, which is opened when there is none.

    All who call while it is opened, or logged in again, wait for the same attempt and get the same
    error. Nothing is sent between the begin and the end of a log-in: Kafka wants it so. What was
    sent before is answered before.
    """

    def __init__(self, endpoint: Endpoint, security: Security, options: BrokerOptions) -> None:
        self.endpoint = endpoint
        self.versions: Mapping[int, tuple[int, int]] = {}
        """API key → lowest and highest version, once connected."""
        self._security = security
        self._options = options
        name = options.client_id.encode()
        self._name = len(name).to_bytes(2, "big") + name
        self._connection: Connection | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._closed = False
        self._failures = 0
        """Attempts to connect since the last answer to a call."""
        self._try_at_s = 0.0
        self._log_in_at_s = self._session_ends_at_s = float("inf")
        self._proven = False
        """Whether a call was ever answered."""

    async def call(self, request: Any, response: type[R], *, timeout_s: float | None = None) -> R:
        """Sends a request of kio's, and reads its answer.

        Raises:
            KafkaUnavailableError: No connection, or no answer in time.
            UnauthenticatedError: The broker does not let us in, or is not who it should be.
        """
        connection = await self.connected()
        answer = await self._proved(
            connection, self._send(connection, request, timeout_s or self._options.timeout_s)
        )
        return self._read(connection, response, answer)

    async def call_raw(
        self, key: int, version: int, body: bytes, *, timeout_s: float
    ) -> memoryview:
        """The same for a flexible request written by hand; the answer behind its header."""
        connection = await self.connected()
        head = key.to_bytes(2, "big") + version.to_bytes(2, "big")
        sent = connection.send(head, b"".join((self._name, b"\0", body)), timeout_s=timeout_s)
        answer = await self._proved(connection, sent)
        try:
            return answer[read_tags(answer, 0)[1] :]
        except ValueError as error:
            raise self._unreadable(connection, error) from error

    async def pass_on(self, frame: memoryview) -> memoryview:
        """Sends a request as somebody else has written it; the answer behind its correlation id.

        Raises:
            KafkaUnavailableError: No connection, or no answer in time.
            UnauthenticatedError: The broker does not let us in, or is not who it should be.
        """
        connection = await self.connected()
        head, rest = bytes(frame[:4]), bytes(frame[8:])
        sent = connection.send(head, rest, timeout_s=self._options.timeout_s)
        return await self._proved(connection, sent)

    async def hand_over(self) -> tuple[asyncio.Transport, float]:
        """A connection that is logged in, for somebody else, and by when it has to log in again.

        Raises:
            KafkaUnavailableError: No connection.
            UnauthenticatedError: The broker does not let us in, or is not who it should be.
        """
        connection = await self.connected()
        self._connection = None
        return connection.hand_over(), self._log_in_at_s

    async def connected(self) -> Connection:
        """The open connection, logged in; opens it when there is none.

        A request goes out before the next `await`, or it may come in the middle of a log-in.

        Raises:
            KafkaUnavailableError: No connection.
            UnauthenticatedError: The broker does not let us in, or is not who it should be.
        """
        while True:
            if self._closed:
                raise KafkaUnavailableError(f"the link to {self.endpoint} was closed by us")
            preparing = self._preparing
            if preparing is None:
                connection = self._connection
                if connection is not None and self._is_ready(connection):
                    return connection
                preparing = asyncio.get_running_loop().create_task(
                    self._prepare(), name=f"kafka {self.endpoint}"
                )
                # With nobody left who waits, its failure is nobody's.
                preparing.add_done_callback(lambda task: task.cancelled() or task.exception())
                self._preparing = preparing
            # Whoever waits may be cancelled; the attempt goes on for the others.
            await asyncio.wait({preparing})
            if not preparing.cancelled() and (error := preparing.exception()) is not None:
                raise error
            made = self._connection
            if made is not None and made.ended is not None:
                # It ended as soon as it was made: whoever calls hears of it, and may try again.
                raise made.ended

    @property
    def receiving_bytes(self) -> int:
        """Memory of a large answer that is not all there, or that nobody has taken in yet."""
        return 0 if self._connection is None else self._connection.receiving_bytes

    def close(self) -> None:
        """Ends the connection for good; calls fail from now on."""
        self._closed = True
        if self._preparing is not None:
            self._preparing.cancel()
        if self._connection is not None:
            self._connection.close()

    # -- making ready -------------------------------------------------------------------------

    def _is_ready(self, connection: Connection) -> bool:
        now_s = asyncio.get_running_loop().time()
        return connection.is_open and connection.writable and now_s < self._log_in_at_s

    async def _prepare(self) -> None:
        try:
            connection = self._connection
            if connection is None or not connection.is_open:
                self._connection = None
                self._connection = await self._opened()
            elif asyncio.get_running_loop().time() >= self._log_in_at_s:
                await self._log_in_again(connection)
            else:
                await connection.until_writable()
        finally:
            self._preparing = None

    async def _opened(self) -> Connection:
        loop = asyncio.get_running_loop()
        if (wait_s := self._try_at_s - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        options = self._options
        backoff_s = min(options.backoff_max_s, options.backoff_s * 2 ** min(self._failures, 16))
        self._failures += 1
        setup_timeout_s = options.connection.setup_timeout_s
        try:
            async with asyncio.timeout(setup_timeout_s):
                return await self._greeted()
        except TimeoutError:
            raise unavailable(
                f"{self.endpoint} took more than {setup_timeout_s:g} s for TLS and log-in"
                " (kafka.socket.connection.setup.timeout.ms)"
            ) from None
        finally:
            self._try_at_s = loop.time() + backoff_s * random.uniform(*JITTER)

    async def _greeted(self) -> Connection:
        login, tls = self._security.login, self._security.tls
        # What there is to show comes first: without a token nobody is called.
        exchange = None if login is None else await login.exchange()
        connection = await Connection.open(
            self.endpoint, self._options.connection, tls=None if tls is None else tls.context()
        )
        self._log_in_at_s = self._session_ends_at_s = float("inf")
        try:
            await self._learn_versions(connection)
            if login is not None and exchange is not None:
                await self._log_in(connection, login, exchange)
        except BaseException:
            connection.close()
            raise
        connection.trust()
        return connection

    async def _learn_versions(self, connection: Connection) -> None:
        timeout_s = self._options.connection.setup_timeout_s
        hello = ApiVersionsRequest(
            client_software_name=CLIENT_NAME, client_software_version=__version__
        )
        answer = await self._send(connection, hello, timeout_s)
        response: type[Any] = ApiVersionsResponse
        if int.from_bytes(answer[:2], "big") == ErrorCode.unsupported_version:
            # Whoever does not know this version answers in version 0 (KIP-511).
            answer = await self._send(connection, ApiVersionsRequest0(), timeout_s)
            response = ApiVersionsResponse0
        found = self._read(connection, response, answer)
        if found.error_code is not ErrorCode.none:
            raise unavailable(f"{self.endpoint} does not say its versions: {found.error_code.name}")
        self.versions = {
            each.api_key: (each.min_version, each.max_version) for each in found.api_keys
        }

    # -- logging in ---------------------------------------------------------------------------

    async def _log_in_again(self, connection: Connection) -> None:
        """Before a session's lifetime is over (KIP-368); requests in flight are not touched."""
        login = self._security.login
        assert login is not None, "a session has a lifetime after a log-in alone"
        try:
            exchange = await login.exchange()
        except SharecoordError as error:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._session_ends_at_s:
                connection.end(error)
                raise
            # The old session is good for a while, and the next token may come in time.
            self._log_in_at_s = min(now_s + TOKEN_AGAIN_S, self._session_ends_at_s)
            return
        try:
            await self._log_in(connection, login, exchange)
        except SharecoordError as error:
            connection.end(error)
            raise

    async def _log_in(self, connection: Connection, login: Login, exchange: SaslExchange) -> None:
        await self._shake_hands(connection, login)
        began_s = asyncio.get_running_loop().time()
        message: bytes | None = exchange.first()
        lifetime_s = 0.0
        while message is not None:
            answer = await self._authenticate(connection, message)
            if answer.error_code is not ErrorCode.none:
                raise self._refused(login, answer.error_message or answer.error_code.name)
            lifetime_s = answer.session_lifetime.total_seconds()
            try:
                message = await exchange.answer(answer.auth_bytes)
            except ValueError as error:
                raise self._refused(login, str(error)) from error
        self._log_in_at_s = self._session_ends_at_s = float("inf")
        if lifetime_s > 0:
            self._session_ends_at_s = began_s + lifetime_s
            due_s = min(lifetime_s * REAUTHENTICATE_PART, lifetime_s - REAUTHENTICATE_BEFORE_S)
            self._log_in_at_s = began_s + max(REAUTHENTICATE_MIN_S, due_s)

    async def _shake_hands(self, connection: Connection, login: Login) -> None:
        handshake = SaslHandshakeRequest(mechanism=login.mechanism)
        sent = self._send(connection, handshake, self._options.timeout_s)
        shaken = self._read(connection, SaslHandshakeResponse, await sent)
        if shaken.error_code is ErrorCode.none:
            return
        if shaken.error_code is ErrorCode.illegal_sasl_state:
            plain = "ssl" if self._security.tls else "plaintext"
            raise UnauthenticatedError(
                f"the listener {self.endpoint} has no log-in: set kafka.security.protocol={plain},"
                " or use the port of its SASL listener"
            )
        offered = printable(", ".join(shaken.mechanisms)) or "none"
        raise UnauthenticatedError(
            f"the listener {self.endpoint} does not take kafka.sasl.mechanism={login.mechanism};"
            f" it takes {offered}"
        )

    async def _authenticate(self, connection: Connection, message: bytes) -> Any:
        _, highest = self.versions.get(authenticate_v2.SaslAuthenticateRequest.__api_key__, (0, 2))
        version: Any = authenticate_v2 if highest >= 2 else authenticate_v1
        request = version.SaslAuthenticateRequest(auth_bytes=message)
        answer = await self._send(connection, request, self._options.timeout_s)
        return self._read(connection, version.SaslAuthenticateResponse, answer)

    def _refused(self, login: Login, said: str) -> UnauthenticatedError:
        user = f" for the user {login.user}" if login.user else ""
        return UnauthenticatedError(
            f"the listener {self.endpoint} ({self._security.protocol}) refused"
            f" {login.mechanism}{user}: {printable(said)}; {login.advice}"
        )

    # -- requests and answers -----------------------------------------------------------------

    def _send(
        self, connection: Connection, request: Any, timeout_s: float
    ) -> asyncio.Future[memoryview]:
        kind = type(request)
        body = io.BytesIO()
        body.write(self._name)
        if kind.__header_schema__.__version__ == 2:
            body.write(b"\0")
        entity_writer(kind)(body, request)
        head = kind.__api_key__.to_bytes(2, "big") + kind.__version__.to_bytes(2, "big")
        return connection.send(head, body.getvalue(), timeout_s=timeout_s)

    async def _proved(self, connection: Connection, sent: asyncio.Future[memoryview]) -> memoryview:
        """The answer; the first one shows that the broker works with us."""
        try:
            answer = await sent
        except KafkaUnavailableError as error:
            if self._proven or not connection.lost or self._security.login is not None:
                raise
            sasl = "sasl_ssl" if self._security.tls else "sasl_plaintext"
            raise unavailable(
                f"{error.message} at the first request; if that goes on, the listener wants a"
                f" log-in: set kafka.security.protocol={sasl} and kafka.sasl.*"
            ) from error
        self._proven, self._failures = True, 0
        return answer

    def _read(self, connection: Connection, response: type[R], answer: memoryview) -> R:
        header: Any = response.__header_schema__  # type: ignore[attr-defined]
        reader: Any = entity_reader(response)
        try:
            found, _ = reader(answer, read_tags(answer, 0)[1] if header.__version__ == 1 else 0)
        except Exception as error:
            raise self._unreadable(connection, error) from error
        assert isinstance(found, response)
        return found

    def _unreadable(self, connection: Connection, error: Exception) -> KafkaUnavailableError:
        why = unavailable(f"{self.endpoint} sent an answer that can not be read: {error!r}")
        connection.end(why)
        return why
