"""Errors as gRPC status: the table is complete, and what is sent can be read back."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from sharecoord_sdk._admin.errors import is_passing
from sharecoord_sdk._core.errors import KafkaError
from sharecoord_sdk._core.status import REASON_KEY as SDK_REASON_KEY
from sharecoord_sdk._core.status import RESOURCE_KEY as SDK_RESOURCE_KEY
from sharecoord_sdk._core.status import RETRY_AFTER_KEY as SDK_RETRY_KEY
from sharecoord_sdk._core.status import code_of_reason

from sharecoord import errors
from sharecoord.errors import SharecoordError, UnauthorizedError
from sharecoord.wire import status


def _tree(kind: type[SharecoordError]) -> Iterator[type[SharecoordError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


KINDS = [
    kind
    for kind in _tree(SharecoordError)
    if kind.__module__ == errors.__name__ and kind is not SharecoordError
]
AT_START_ONLY = {
    "STORE_IN_USE",
    "STORE_VERSION",
    "STORE_CLUSTER_MISMATCH",
    "EVENTS_FOLDER_IN_USE",
}
"""Reasons that keep a coordinator or a command on files from starting: no client ever sees them."""


def read(error: SharecoordError) -> tuple[dict[str, str], status_pb2.Status]:
    """Plain metadata and the google.rpc status of an error."""
    metadata = dict(status.trailing_metadata(error))
    packed = metadata.pop(status.DETAILS_KEY)
    assert isinstance(packed, bytes)
    assert all(isinstance(value, str) for value in metadata.values())
    return {key: str(value) for key, value in metadata.items()}, status_pb2.Status.FromString(
        packed
    )


def test_every_reason_has_a_code_and_every_code_a_reason() -> None:
    assert {kind.reason for kind in KINDS} == status.CODES.keys()


def test_no_error_looks_like_success_or_like_a_cancelled_call() -> None:
    wrong = {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
    assert not wrong & set(status.CODES.values())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_can_be_read_back(kind: type[SharecoordError]) -> None:
    error = kind("what is wrong, and the fix", retry_after_ms=1234, metadata={"key": "a.b"})
    plain, found = read(error)
    assert plain[status.REASON_KEY] == kind.reason
    assert found.code == code_pb2.Code.Value(status.code_of(error).name)
    assert found.message == "what is wrong, and the fix"
    info = error_details_pb2.ErrorInfo()
    assert found.details[0].Unpack(info)
    assert (info.reason, info.domain) == (kind.reason, "sharecoord")
    assert dict(info.metadata) == {"key": "a.b"}
    retry = error_details_pb2.RetryInfo()
    assert len(found.details) == 1 + kind.retriable
    if kind.retriable:
        assert found.details[1].Unpack(retry)
        assert retry.retry_delay.ToMilliseconds() == 1234
        assert plain[status.RETRY_KEY] == "1234"
    else:
        assert status.RETRY_KEY not in plain


def test_a_retriable_error_always_says_when() -> None:
    plain, found = read(errors.NotOwnerError("elsewhere"))
    retry = error_details_pb2.RetryInfo()
    assert found.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == int(plain[status.RETRY_KEY]) > 0
    plain, _ = read(errors.NotOwnerError("elsewhere", retry_after_ms=0))
    assert plain[status.RETRY_KEY] == "0"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_metadata_is_what_http2_can_carry(kind: type[SharecoordError]) -> None:
    for key, value in status.trailing_metadata(kind("grüße\n\x00 訂單")):
        assert key == key.lower()
        assert isinstance(value, bytes) == key.endswith("-bin")
        if isinstance(value, str):
            assert value.isascii()
            assert value.isprintable()


def test_what_a_caller_may_not_use_is_said_in_plain_metadata() -> None:
    error = UnauthorizedError("no", metadata={"resource": "topic:größe\r\nx: 1"})
    found = dict(status.trailing_metadata(error))
    assert found[SDK_RESOURCE_KEY] == "topic:gr%C3%B6%C3%9Fe%0D%0Ax:%201"
    assert SDK_RESOURCE_KEY not in dict(status.trailing_metadata(UnauthorizedError("no")))


def test_the_sdk_reads_the_same_keys_and_knows_every_reason() -> None:
    assert (SDK_REASON_KEY, SDK_RETRY_KEY) == (status.REASON_KEY, status.RETRY_KEY)
    seen = {kind.reason for kind in KINDS} - AT_START_ONLY - {"INTERNAL"}
    assert [r for r in sorted(seen) if code_of_reason(r) == KafkaError.UNKNOWN] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_admin_client_agrees_on_what_passes_by_itself(kind: type[SharecoordError]) -> None:
    assert is_passing(kind.reason) == kind.retriable


def test_a_retry_is_asked_for_where_the_code_says_so() -> None:
    """Clients without our table retry UNAVAILABLE and nothing else; the two must agree."""
    for kind in KINDS:
        if status.CODES[kind.reason] is grpc.StatusCode.UNAVAILABLE:
            assert kind.retriable, kind
        elif kind.retriable:
            assert status.CODES[kind.reason] is grpc.StatusCode.RESOURCE_EXHAUSTED, kind
