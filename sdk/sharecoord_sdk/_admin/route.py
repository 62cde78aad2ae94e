"""The coordinator that an admin client asks, its configuration, and a check for Kafka brokers."""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final

from sharecoord_sdk._core.config import ConsumerConfig, read_arguments, read_config
from sharecoord_sdk._core.config_table import CREATE_FAILED
from sharecoord_sdk._core.credentials import Credentials, TokenOutcome, token_error
from sharecoord_sdk._core.errors import IllegalStateException, KafkaError, KafkaException
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._core.tls_files import TlsMaterial

from .calls import Call
from .errors import AdminError, AuthorizationError, InvalidConfigError, call_error

_API_VERSIONS: Final = 18
_CORRELATION_ID: Final = 0x5C0D
_CLIENT_ID: Final = b"sharecoord"
# ApiVersions version 0, which every broker answers: header (key, version, correlation id, client
# id) and no body.
_HEADER: Final = struct.pack(">hhih", _API_VERSIONS, 0, _CORRELATION_ID, len(_CLIENT_ID))
_REQUEST: Final = struct.pack(">i", len(_HEADER) + len(_CLIENT_ID)) + _HEADER + _CLIENT_ID


class Route:
    """The addresses of an admin client: the last one that answered, then the others in order."""

    def __init__(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        self.config = read_admin_config(arguments, keywords)
        self._addresses = list(self.config.addresses)
        self._proven = False
        self._closed = False
        self._pid = os.getpid()
        self._credentials = Credentials(self.config.sasl, self.config.reconnect_backoff_s)
        # Why there is no new token.
        self._token_error: KafkaError | None = None

    def close(self) -> None:
        self._closed = True

    def check(self) -> None:
        """Raises IllegalStateException after `close` and in a forked child."""
        if self._closed:
            raise IllegalStateException("Admin client closed")
        if os.getpid() != self._pid:
            raise IllegalStateException(
                "This admin client was made before a fork: gRPC connections do not survive one."
                " Make a new client in the child process"
            )

    def addresses(self, call: Call[Any]) -> list[str]:
        """Where a call may go: a change to one place only, so that it never happens twice."""
        return list(self._addresses) if call.is_safe else self._addresses[:1]

    def must_be_found(self, call: Call[Any]) -> bool:
        """Whether a coordinator must have answered before this call may change something."""
        return not call.is_safe and len(self._addresses) > 1 and not self._proven

    def answered(self, address: str) -> None:
        """Puts this address first from now on."""
        self._proven = True
        # One assignment: other threads see the old list or the new one.
        self._addresses = [address, *(other for other in self._addresses if other != address)]

    def failed(self, failure: StreamFailure, address: str) -> AdminError:
        self._proven = False
        return call_error(failure, address, self.config.api_timeout_s)

    def is_silent(self, failure: StreamFailure) -> bool:
        """Whether nobody speaks gRPC there."""
        return failure.code == "UNAVAILABLE" and not failure.reason

    def may_be_kafka(self, failure: StreamFailure) -> bool:
        """Whether a Kafka broker may be at the address, so that a probe is worth its time."""
        return self.is_silent(failure) and self.config.tls is None

    @property
    def tls(self) -> TlsMaterial | None:
        """What a connection is made with now; it changes with its files."""
        return None if self.config.tls is None else self.config.tls.current()

    # -- credentials: one thread or task at a time fetches a token ------------------------------

    @property
    def is_token_due(self) -> bool:
        """Whether to call `begin_fetch`: a token is missing, or soon ends."""
        tokens, now = self._credentials.tokens, time.monotonic()
        return tokens is not None and (tokens.fetch_at <= now or tokens.text(now) is None)

    def begin_fetch(self) -> bool:
        """Whether to fetch a token now, and to call `token_came`; not by two at a time."""
        tokens, now = self._credentials.tokens, time.monotonic()
        if tokens is None or tokens.fetch_at > now:
            return False
        tokens.began(now)
        return True

    def token_came(self, outcome: TokenOutcome) -> None:
        """Notes how a fetch has ended; while the old token holds, a failure is only logged."""
        assert self._credentials.tokens is not None
        self._credentials.tokens.ended(outcome, time.monotonic())
        self._token_error = token_error(outcome) if isinstance(outcome, Exception) else None
        if self._token_error is not None and self._header() is not None:
            text = "%s; the old one serves until it ends"
            self.config.logger.log(logging.WARNING, text, self._token_error.str())

    def authorization(self) -> str:
        """What a call shows; "" = nothing.

        Raises:
            AuthorizationError: There is no token, and why.
        """
        header = self._header()
        if header is None:
            error = self._token_error
            text = "no token is there yet" if error is None else error.str()
            retriable = error is None or error.retriable()
            raise AuthorizationError(text, reason="UNAUTHENTICATED", retriable=retriable)
        return header

    def asks_anew(self, failure: StreamFailure, shown: str) -> bool:
        """Whether a refused call is to be made once more, with another token.

        Args:
            failure: How the call has ended.
            shown: What it showed.
        """
        tokens = self._credentials.tokens
        if tokens is None or not failure.is_unauthenticated:
            return False
        if self._header() == shown:
            tokens.refused(time.monotonic(), again=True)
        return True

    def _header(self) -> str | None:
        return self._credentials.header(time.monotonic())


def read_admin_config(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> ConsumerConfig:
    """Reads the configuration of an admin client: a consumer's keys, `group.id` not needed.

    Raises:
        TypeError: Not a dict, or a callback that can not be called.
        InvalidConfigError: An unknown key or a bad value, by name.
    """
    given = read_arguments(arguments, keywords)
    try:
        return read_config(({"group.id": "admin"} | given,), {})
    except KafkaException as error:
        raise InvalidConfigError(error.args[0].str(), reason="INVALID_CONFIG") from None
    except ValueError as error:
        text = str(error).removeprefix(CREATE_FAILED)
        raise InvalidConfigError(text, reason="INVALID_CONFIG") from None


def speaks_kafka(address: str, timeout_s: float = 2.0) -> bool:
    """Whether a Kafka broker answers in clear text at `host:port`. Never raises."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or not port.isdecimal():
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_REQUEST)
            answer = b""
            while len(answer) < 8:
                part = connection.recv(8 - len(answer))
                if not part:
                    return False
                answer += part
    except OSError:
        return False
    size_bytes: int
    correlation_id: int
    size_bytes, correlation_id = struct.unpack(">ii", answer)
    return size_bytes > 0 and correlation_id == _CORRELATION_ID
