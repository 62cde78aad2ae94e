"""Errors of calls that nobody raised on purpose."""

from __future__ import annotations

import pytest
from grpc._cython import cygrpc
from structlog.testing import capture_logs

from sharecoord.api.grpc.calls import unexpected
from sharecoord.errors import DrainingError, InternalError


def test_a_server_that_has_stopped_is_no_mistake() -> None:
    with capture_logs() as logs:
        error = unexpected("Consume", cygrpc._ServerStoppedError("Server already stopped"))
    assert isinstance(error, DrainingError)
    assert logs == []


@pytest.mark.parametrize("problem", [ValueError("no"), cygrpc.UsageError("no")])
def test_a_mistake_is_logged_with_its_traceback(problem: Exception) -> None:
    with capture_logs() as logs:
        error = unexpected("Consume", problem)
    assert isinstance(error, InternalError)
    assert [(each["event"], each["call"], each["exc_info"]) for each in logs] == [
        ("call failed", "Consume", problem)
    ]
