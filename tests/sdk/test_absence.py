"""What the application hears when no coordinator serves it: true in each case, and with the fix."""

from __future__ import annotations

import pytest
from sharecoord_sdk import KafkaError
from sharecoord_sdk._core.notices import no_coordinator
from sharecoord_sdk._core.status import StreamFailure, describe

REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
BROKER = "Is this a Kafka broker?"
NOBODY = "h:1: no coordinator has answered there for 10 s"
UNSERVED = "h:1: this consumer has not been served there for 10 s"
ANSWERS = "coordinator h:1 answers, but has not served this consumer for 10 s"
TRANSPORT, TLS = KafkaError._TRANSPORT, KafkaError._SSL

# The details are gRPC's own words (1.85), as the cases of their kind really give them.
CASES: list[tuple[StreamFailure | None, int, str, list[str]]] = [
    (None, TRANSPORT, NOBODY, ["nobody answers the join", "firewall"]),
    (
        StreamFailure("DEADLINE_EXCEEDED", "no answer to the join"),
        TRANSPORT,
        NOBODY,
        ["nobody answers the join", "stopped or overloaded", "firewall"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE", f"{REFUSED}Failed to connect to remote host: Connection refused"
        ),
        TRANSPORT,
        NOBODY,
        ["nothing listens there", "sharecoord serve"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE", "connect failed: addr: unix:/s error: No such file or directory"
        ),
        TRANSPORT,
        NOBODY,
        ["nothing listens there", "sharecoord serve"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE",
            "errors resolving h:1: [field:hostname lookup error:address lookup failed for h:1:"
            " Domain name not found]",
        ),
        KafkaError._RESOLVE,
        NOBODY,
        ["the host name is not known", "bootstrap.servers"],
    ),
    (
        StreamFailure("UNAVAILABLE", f"{REFUSED}recvmsg:Connection reset by peer (104)"),
        TRANSPORT,
        NOBODY,
        ["hangs up", BROKER, "security.protocol"],
    ),
    (
        StreamFailure("UNAVAILABLE", "Stream removed (ping timeout)"),
        TRANSPORT,
        NOBODY,
        ["keeps its connection and answers nothing", "stopped", "frozen"],
    ),
    (
        StreamFailure("UNAVAILABLE", f"{REFUSED}Socket closed"),
        TRANSPORT,
        NOBODY,
        ["hangs up", BROKER, "security.protocol", "ssl.certificate.location"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE",
            f"{REFUSED}Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got"
            " frame type 79)",
        ),
        TRANSPORT,
        NOBODY,
        ["an HTTP server or proxy", "bootstrap.servers"],
    ),
    (
        StreamFailure("UNAVAILABLE", "Received http2 header with status: 503"),
        TRANSPORT,
        NOBODY,
        ["an HTTP server or proxy", "bootstrap.servers"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE",
            f"{REFUSED}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL:"
            " error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: self signed",
        ),
        TLS,
        NOBODY,
        ["signed by no CA", "ssl.ca.location"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE",
            f"{REFUSED}Custom verification check failed with error: UNAUTHENTICATED: Hostname"
            " Verification Check failed.",
        ),
        TLS,
        NOBODY,
        ["another host name"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE",
            f"{REFUSED}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: SSL"
            " routines:OPENSSL_internal:WRONG_VERSION_NUMBER",
        ),
        TLS,
        NOBODY,
        ["does not speak TLS", "security.protocol to plaintext"],
    ),
    (
        StreamFailure(
            "UNAVAILABLE",
            f"{REFUSED}Handshake read failed (recvmsg:Connection reset by peer (104))",
        ),
        TLS,
        NOBODY,
        ["the TLS handshake failed", "ssl.certificate.location"],
    ),
    (
        StreamFailure("UNAVAILABLE", f"{REFUSED}Network is unreachable"),
        TRANSPORT,
        NOBODY,
        ["the host can not be reached", "firewall"],
    ),
    (
        StreamFailure("UNAVAILABLE", "?"),
        TRANSPORT,
        UNSERVED,
        ["turns this consumer away", BROKER, "log"],
    ),
    (StreamFailure("INTERNAL", "oops"), TRANSPORT, UNSERVED, ["without a reason", "log"]),
    (StreamFailure("OK", "the stream ended"), TRANSPORT, UNSERVED, ["without an answer", "proxy"]),
    (
        StreamFailure("RESOURCE_EXHAUSTED", "Received message larger than max (5 vs. 4)"),
        TRANSPORT,
        UNSERVED,
        ["no message of this size", "limits.request.max.bytes"],
    ),
    (
        StreamFailure("UNAVAILABLE", "shutting down", "DRAINING", 1000),
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        ANSWERS,
        ["DRAINING", "shutting down", "another coordinator in bootstrap.servers"],
    ),
    (
        StreamFailure("UNAVAILABLE", "database is locked", "STORE_UNAVAILABLE", 200),
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        ANSWERS,
        ["STORE_UNAVAILABLE", "database is locked", "store.url"],
    ),
    (
        StreamFailure("UNAVAILABLE", "no broker", "KAFKA_UNAVAILABLE", 200),
        KafkaError.BROKER_NOT_AVAILABLE,
        ANSWERS,
        ["KAFKA_UNAVAILABLE", "no broker", "kafka.bootstrap.servers"],
    ),
    (
        StreamFailure("UNAVAILABLE", "hm", "SOMETHING_NEW", 200),
        KafkaError.UNKNOWN,
        ANSWERS,
        ["SOMETHING_NEW", "the coordinator's log"],
    ),
]


@pytest.mark.parametrize(
    ("failure", "code", "begins", "holds"), CASES, ids=lambda value: repr(value)[:60]
)
def test_an_absence_is_told_as_it_is_and_with_the_fix(
    failure: StreamFailure | None, code: int, begins: str, holds: list[str]
) -> None:
    error = no_coordinator("h:1", failure, 10.4)
    text = error.str()
    assert (error.code(), error.retriable()) == (code, True)
    assert text.startswith(begins)
    assert [part for part in holds if part not in text] == []
    assert (BROKER in text) == (BROKER in holds), "asked only where it can be one"
    if failure is not None:
        assert f"({failure.code}" in text
        assert failure.details in text


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (
            StreamFailure("UNIMPLEMENTED", "Received http2 header with status: 404"),
            "h:1: UNIMPLEMENTED: Received http2 header with status: 404; an HTTP server or proxy",
        ),
        (StreamFailure("UNIMPLEMENTED", "Method not found!"), "speaks gRPC but not sharecoord.v1"),
        (StreamFailure("UNAVAILABLE", "later", "DRAINING"), "coordinator h:1: UNAVAILABLE (DRAIN"),
        (StreamFailure("UNAVAILABLE", ""), "h:1: UNAVAILABLE: no details"),
    ],
)
def test_only_who_gives_a_reason_is_called_a_coordinator(failure: StreamFailure, says: str) -> None:
    text = describe(failure, "h:1")
    assert says in text
    assert text.startswith("coordinator ") == bool(failure.reason)
