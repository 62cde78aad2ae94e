"""The admin clients without a server: configuration, errors, life."""

from __future__ import annotations

import base64
import inspect
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sharecoord_sdk import IllegalStateException
from sharecoord_sdk._admin.errors import call_error, item_error
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import admin_service_pb2 as admin_pb
from sharecoord_sdk.admin import (
    AdminClient,
    AdminError,
    AsyncAdminClient,
    AuthorizationError,
    CoordinatorUnavailableError,
    DeadLetterFilter,
    ForceAction,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    NotACoordinatorError,
    ResetTo,
    UnknownTopicOrPartitionError,
)

from sharecoord.errors import SharecoordError
from sharecoord.wire.status import CODES, REASON_KEY, RETRY_KEY, code_of, trailing_metadata

HERE = {"bootstrap.servers": "127.0.0.1:1"}


def every_error(kind: type[SharecoordError] = SharecoordError) -> Iterator[type[SharecoordError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_error(below)


ERRORS = {kind.reason: kind for kind in every_error() if kind.reason in CODES}


@pytest.mark.parametrize("reason", sorted(CODES))
def test_what_may_be_retried_is_what_the_server_says(reason: str) -> None:
    kind = ERRORS[reason]
    item = item_error(reason, "why")
    assert item is not None
    assert (item.reason, item.message, item.retriable) == (reason, "why", kind.retriable)
    sent = kind("why", retry_after_ms=250)
    metadata = dict(trailing_metadata(sent))
    wait = metadata.get(RETRY_KEY)
    failure = StreamFailure(
        code_of(sent).name,
        sent.message,
        str(metadata[REASON_KEY]),
        None if wait is None else int(wait),
    )
    received = call_error(failure, "x:1", 30)
    assert type(received) is type(item)
    assert (received.reason, received.message) == (reason, "why")
    assert received.retriable is kind.retriable
    assert received.retry_after_ms == (250 if kind.retriable else None)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("INVALID_REQUEST", InvalidRequestError),
        ("INVALID_CONFIG", InvalidConfigError),
        ("GROUP_ID_NOT_FOUND", GroupNotFoundError),
        ("GROUP_NOT_EMPTY", GroupNotEmptyError),
        ("UNKNOWN_TOPIC_OR_PARTITION", UnknownTopicOrPartitionError),
        ("AUTHORIZATION_FAILED", AuthorizationError),
        ("STORE_UNAVAILABLE", CoordinatorUnavailableError),
        ("A_REASON_OF_TOMORROW", AdminError),
    ],
)
def test_each_reason_has_its_class(reason: str, kind: type[AdminError]) -> None:
    assert type(item_error(reason, "why")) is kind


def test_no_reason_is_no_error() -> None:
    assert item_error("", "") is None


@pytest.mark.parametrize(
    ("code", "kind", "retriable", "text"),
    [
        ("UNIMPLEMENTED", NotACoordinatorError, False, "is it a sharecoord coordinator"),
        ("UNAUTHENTICATED", AuthorizationError, False, "check sasl.username"),
        ("PERMISSION_DENIED", AuthorizationError, False, "x:1: why"),
        ("DEADLINE_EXCEEDED", CoordinatorUnavailableError, True, "within 2.5 s"),
        ("UNAVAILABLE", CoordinatorUnavailableError, True, r"answers at x:1 \(why\)"),
        ("DATA_LOSS", AdminError, False, "x:1: DATA_LOSS: why"),
    ],
)
def test_a_bare_status_names_the_address(
    code: str, kind: type[AdminError], retriable: bool, text: str
) -> None:
    error = call_error(StreamFailure(code, "why"), "x:1", 2.5)
    assert type(error) is kind
    assert error.retriable is retriable
    with pytest.raises(AdminError, match=text):
        raise error


@pytest.mark.parametrize("why", ["Socket closed", "recvmsg:Connection reset by peer (104)"])
def test_who_hangs_up_may_want_a_certificate(why: str) -> None:
    details = f"failed to connect to all addresses; last error: UNKNOWN: {why}"
    error = call_error(StreamFailure("UNAVAILABLE", details), "x:1", 2.5)
    assert type(error) is CoordinatorUnavailableError
    assert f"hangs up ({why}); does it want TLS, or a certificate" in str(error)


@pytest.mark.parametrize("client", [AdminClient, AsyncAdminClient])
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bootstrap.servers": "no port:x"}, "bootstrap.servers"),
        ({**HERE, "bootstrap.server": "x"}, "did you mean bootstrap.servers"),
        ({**HERE, "security.protocol": "sasl_plaintext"}, "over TLS only"),
        ({**HERE, "security.protocol": "sasl_ssl", "sasl.mechanisms": "PLAIN"}, "sasl.password"),
        ({**HERE, "ssl.truststore.location": "x.jks"}, "PEM"),
    ],
)
def test_bad_settings_are_refused_by_name(
    client: type[Any], settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidConfigError, match=text) as raised:
        client(settings)
    assert raised.value.reason == "INVALID_CONFIG"


def test_a_dict_is_needed() -> None:
    with pytest.raises(TypeError, match="dict"):
        AdminClient("localhost:7070")


def test_credentials_go_with_every_call() -> None:
    secure = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "PLAIN"}
    names = {"sasl.username": "ann", "sasl.password": "pw"}
    client = AdminClient(HERE | secure | names)
    assert client._authorization() == f"Basic {base64.b64encode(b'ann:pw').decode()}"
    bearer = {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": lambda _: ("token", 1e12)}
    assert AdminClient(HERE | secure | bearer)._authorization() == "Bearer token"
    assert AdminClient(HERE)._authorization() == ""


def test_a_closed_client_says_so() -> None:
    client = AdminClient(HERE)
    client.close()
    client.close()
    with pytest.raises(IllegalStateException, match="closed"):
        client.list_groups()


def test_a_forked_child_is_told_to_make_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    client = AdminClient(HERE)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(IllegalStateException, match="before a fork"):
        client.describe_coordinator()


METHODS = [
    re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    for method in admin_pb.DESCRIPTOR.services_by_name["AdminService"].methods
]


@pytest.mark.parametrize("name", METHODS)
def test_both_clients_have_every_call_of_the_service(name: str) -> None:
    blocking, awaited = getattr(AdminClient, name), getattr(AsyncAdminClient, name)
    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(blocking)
    assert blocking.__name__ == awaited.__name__ == name
    assert blocking.__doc__
    assert blocking.__doc__ == awaited.__doc__
    signature = inspect.signature(blocking)
    assert signature == inspect.signature(awaited)
    assert next(iter(signature.parameters)) == "self"
    of_object = inspect.signature(getattr(AdminClient(HERE), name))
    assert list(of_object.parameters) == list(signature.parameters)[1:]


def test_one_name_is_not_a_list_of_names() -> None:
    with AdminClient(HERE) as client:
        with pytest.raises(TypeError, match="topics is one str"):
            client.delete_offsets("g", "orders")
        with pytest.raises(TypeError, match="group_ids is one str"):
            client.delete_groups("g")
        with pytest.raises(TypeError, match="topics is one str"):
            client.reset_offsets("g", ResetTo.latest(), "orders")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda c: c.list_in_flight("g", "t", 2**31),
            ValueError,
            r"^partition must be -2147483648 ",
        ),
        (
            lambda c: c.list_in_flight("g", "t", 0, from_offset="x"),
            TypeError,
            "^from_offset must be int",
        ),
        (
            lambda c: c.list_in_flight("g", "t", 0, max_ranges=-1),
            ValueError,
            "^max_ranges must be 0 ",
        ),
        (lambda c: c.list_in_flight(5, "t", 0), TypeError, "^group_id must be str, not 5"),
        (
            lambda c: c.force_records("g", "t", 0, 0, 2**63, ForceAction.SKIP),
            ValueError,
            "^last_offset",
        ),
        (
            lambda c: c.reset_offsets("g", ResetTo.offset(2**63), ["t"]),
            ValueError,
            "^to_offset must",
        ),
        (
            lambda c: c.reset_offsets("g", ResetTo.offsets({("t", 0): 1.5})),
            TypeError,
            "^offset must be int",
        ),
        (lambda c: c.pause_group("g", {"t": ["0"]}), TypeError, "^each of partitions must be int"),
        (lambda c: c.show_dead_letter("g", place=(0, 2**63)), ValueError, "^offset must be"),
        (lambda c: c.show_dead_letter("g", 5), TypeError, "^id must be str, not 5"),
        (
            lambda c: c.list_dead_letters("g", DeadLetterFilter(key=5)),
            TypeError,
            "^key must be bytes, not 5",
        ),
        (
            lambda c: c.list_dead_letters("g", DeadLetterFilter(headers=[("a", 5)])),
            TypeError,
            "^value must be bytes, not 5",
        ),
        (
            lambda c: c.redrive_dead_letters("g", rate_per_s=-1),
            ValueError,
            "^rate_per_s must be 0 ",
        ),
        (lambda c: c.block_keys("g", [b"a"], reason=b"\xff"), ValueError, "^reason can not be"),
    ],
)
def test_what_does_not_fit_is_named(
    call: Callable[[AdminClient], object], error: type[Exception], text: str
) -> None:
    with AdminClient(HERE) as client, pytest.raises(error, match=text):
        call(client)


async def test_nobody_at_the_address() -> None:
    async with AsyncAdminClient(HERE) as client:
        with pytest.raises(CoordinatorUnavailableError, match="sharecoord serve"):
            await client.list_groups()
