"""Which of the coordinators an admin client asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sharecoord_sdk._core.errors import IllegalStateException
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._grpc import authorization

from .calls import Call
from .config import read_admin_config
from .errors import AdminError, call_error


class Route:
    """Which coordinator is asked: the last one that answered, then the others in order."""

    def __init__(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        self.config = read_admin_config(arguments, keywords)
        self._addresses = list(self.config.addresses)
        self._proven = False
        self._closed = False
        self._pid = os.getpid()

    def close(self) -> None:
        """No calls come after this."""
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

    def addresses(self, call: Call) -> list[str]:
        """Where a call may go: a change to one place only, so that it never happens twice."""
        return list(self._addresses) if call.is_safe else self._addresses[:1]

    def must_be_found(self, call: Call) -> bool:
        """Whether a coordinator has to be looked for before this call may change something."""
        return not call.is_safe and len(self._addresses) > 1 and not self._proven

    def answered(self, address: str) -> None:
        """This one is asked first from now on."""
        self._proven = True
        # One assignment: other threads see the old list or the new one.
        self._addresses = [address, *(other for other in self._addresses if other != address)]

    def failed(self, failure: StreamFailure, address: str) -> AdminError:
        """The error of a failed call."""
        self._proven = False
        return call_error(failure, address, self.config.api_timeout_s)

    def is_silent(self, failure: StreamFailure) -> bool:
        """Whether nobody speaks gRPC there."""
        return failure.code == "UNAVAILABLE" and not failure.reason

    def may_be_kafka(self, failure: StreamFailure) -> bool:
        """Whether it is worth asking if a Kafka broker answers there."""
        return self.is_silent(failure) and self.config.tls is None

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Credentials of one call."""
        sasl = self.config.sasl
        return () if sasl is None else tuple(authorization(sasl))
