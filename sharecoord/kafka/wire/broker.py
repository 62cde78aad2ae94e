"""One broker of the cluster: its connection, kept open while it is used, and what it can do."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import structlog
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader, entity_writer

from sharecoord.errors import KafkaUnavailableError, UnauthenticatedError
from sharecoord.kafka.wire.connection import Connection, Endpoint, Socket
from sharecoord.kafka.wire.security import Security

log = structlog.get_logger(__name__)

R = TypeVar("R")

CLIENT_NAME: Final = "sharecoord"
BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0
"""A broker that is down is tried so often, give or take a fifth."""

REAUTHENTICATE_PART: Final = 0.85
"""Of the lifetime of a session (KIP-368): after it the connection authenticates again."""


class Broker:
    """A broker: calls go out on one connection, which is opened when there is none."""

    def __init__(
        self,
        endpoint: Endpoint,
        security: Security,
        *,
        client_id: str,
        timeout_s: float,
        answer_bytes_max: int,
    ) -> None:
        self.endpoint = endpoint
        self.versions: Mapping[int, tuple[int, int]] = {}
        """API key → lowest and highest version, once connected."""
        self._security = security
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._answer_bytes_max = answer_bytes_max
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self._failures = 0
        self._try_at_s = 0.0
        self._reauthenticate_at_s = float("inf")

    async def call(self, request: Any, response: type[R], *, timeout_s: float | None = None) -> R:
        """Sends a request of kio's, and reads its answer.

        Raises:
            KafkaUnavailableError: No connection, or no answer in time.
            UnauthenticatedError: The broker does not let us in.
        """
        connection = await self.connected()
        return await self._call(connection, request, response, timeout_s or self._timeout_s)

    async def call_raw(
        self, key: int, version: int, body: bytes, *, timeout_s: float
    ) -> memoryview:
        """The same for a flexible request written by hand; the answer behind its header."""
        connection = await self.connected()
        head = key.to_bytes(2, "big") + version.to_bytes(2, "big")
        answer = await connection.send(
            head, self._header_rest() + b"\0" + body, timeout_s=timeout_s
        )
        return answer[_skip_tags(answer, 0) :]

    async def connected(self) -> Connection:
        """The open connection; opens it when there is none."""
        async with self._opening:
            connection = self._connection
            if connection is None or not connection.is_open:
                self._connection = None
                connection = self._connection = await self._open()
            elif asyncio.get_running_loop().time() > self._reauthenticate_at_s:
                await self._authenticate(connection)
            return connection

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        if (wait_s := self._try_at_s - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        try:
            connection = await self._greeted()
        except (KafkaUnavailableError, UnauthenticatedError):
            backoff_s = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** min(self._failures, 10))
            self._failures += 1
            self._try_at_s = loop.time() + backoff_s * random.uniform(0.8, 1.2)
            raise
        self._failures = 0
        return connection

    async def _greeted(self) -> Connection:
        options = Socket(answer_bytes_max=self._answer_bytes_max)
        connection = await Connection.open(self.endpoint, options, tls=self._security.tls)
        try:
            hello = ApiVersionsRequest(
                client_software_name=CLIENT_NAME, client_software_version="0.1.0"
            )
            found = await self._call(connection, hello, ApiVersionsResponse, self._timeout_s)
            self.versions = {k.api_key: (k.min_version, k.max_version) for k in found.api_keys}
            if self._security.exchange is not None:
                await self._authenticate(connection)
        except BaseException:
            connection.close()
            raise
        connection.trust()
        return connection

    async def _authenticate(self, connection: Connection) -> None:
        """SASL, at the begin of a connection and before a session's lifetime is over."""
        security = self._security
        assert security.exchange is not None, "asked for with SASL alone"
        assert security.mechanism is not None, "there is an exchange"
        handshake = SaslHandshakeRequest(mechanism=security.mechanism)
        shaken = await self._call(connection, handshake, SaslHandshakeResponse, self._timeout_s)
        if shaken.error_code is not ErrorCode.none:
            offered = ", ".join(shaken.mechanisms)
            raise UnauthenticatedError(
                f"{self.endpoint} does not take kafka.sasl.mechanism={security.mechanism};"
                f" it has {offered}"
            )
        exchange = security.exchange()
        message: bytes | None = exchange.first()
        while message is not None:
            request = SaslAuthenticateRequest(auth_bytes=message)
            answer = await self._call(
                connection, request, SaslAuthenticateResponse, self._timeout_s
            )
            if answer.error_code is not ErrorCode.none:
                said = answer.error_message or answer.error_code.name
                raise UnauthenticatedError(f"{self.endpoint} refused {security.mechanism}: {said}")
            message = exchange.answer(answer.auth_bytes)
        lifetime_s = answer.session_lifetime.total_seconds()
        self._reauthenticate_at_s = float("inf")
        if lifetime_s > 0:
            now_s = asyncio.get_running_loop().time()
            self._reauthenticate_at_s = now_s + lifetime_s * REAUTHENTICATE_PART

    async def _call(
        self, connection: Connection, request: Any, response: type[R], timeout_s: float
    ) -> R:
        kind = type(request)
        body = io.BytesIO()
        body.write(self._header_rest())
        # Header version 2 has tags; ApiVersions' answer never has (KIP-511).
        if kind.__flexible__ and kind.__header_schema__.__version__ == 2:
            body.write(b"\0")
        entity_writer(kind)(body, request)
        head = kind.__api_key__.to_bytes(2, "big") + kind.__version__.to_bytes(2, "big")
        answer = await connection.send(head, body.getvalue(), timeout_s=timeout_s)
        header: Any = response.__header_schema__  # type: ignore[attr-defined]
        at = _skip_tags(answer, 0) if header.__version__ == 1 else 0
        try:
            found, _ = entity_reader(response)(answer.toreadonly(), at)
        except Exception as error:
            why = KafkaUnavailableError(
                f"{self.endpoint} sent an answer that can not be read: {error!r}",
                retry_after_ms=500,
            )
            connection.end(why)
            raise why from error
        return found

    def _header_rest(self) -> bytes:
        return len(self._client_id).to_bytes(2, "big") + self._client_id

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()


def _skip_tags(data: memoryview, at: int) -> int:
    """Where the tagged fields at `at` end (KIP-482)."""
    count, at = _uvarint(data, at)
    for _ in range(count):
        _, at = _uvarint(data, at)
        size, at = _uvarint(data, at)
        at += size
    return at


def _uvarint(data: memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
