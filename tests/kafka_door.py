"""A client of the Kafka port, or of a broker, by hand, that waits for each answer."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from sharecoord.security.scram import HASHES
from tests.sasl import bearer, plain, scram_final, scram_first
from tests.unit.api.kafka.messages import frame_of

HANDSHAKE, AUTHENTICATE = 17, 36


class KafkaDoor:
    """One connection."""

    def __init__(self, port: int, authority: Path | None = None, *, timeout_s: float = 30) -> None:
        """Connects, over TLS where an authority is given."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        if authority is not None:
            context = ssl.create_default_context(cafile=str(authority))
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """The answer to a request; ConnectionError where there is none."""
        request: Any = load_request_schema(api_key, version)
        frame = frame_of(request(**values))
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        head = self._file.read(4)
        if len(head) < 4:
            raise ConnectionError("the coordinator has ended the connection")
        found = self._file.read(struct.unpack(">i", head)[0])
        answer: Any = load_response_schema(api_key, version)
        _, at = entity_reader(answer.__header_schema__)(found, 0)
        return entity_reader(answer)(found, at)[0]

    def log_in(self, mechanism: str, name: str, secret: str) -> tuple[int, str]:
        """Proves who it is: the code of the last answer, and its message."""
        begun = self.ask(HANDSHAKE, 1, mechanism=mechanism)
        if begun.error_code.value:
            return begun.error_code.value, ""
        first = plain(name, secret) if mechanism == "PLAIN" else bearer(secret)
        if mechanism in HASHES:
            first = scram_first(name)
        answer = self._say(first)
        if mechanism in HASHES and not answer.error_code.value:
            answer = self._say(scram_final(first, answer.auth_bytes, secret, mechanism))
        elif mechanism == "OAUTHBEARER" and answer.auth_bytes:
            answer = self._say(b"\x01")
        return answer.error_code.value, answer.error_message or ""

    def _say(self, message: bytes) -> Any:
        return self.ask(AUTHENTICATE, 2, auth_bytes=message)
