"""Texts for people: why a consumer is not joined, where a new group starts, refused topics."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final, NamedTuple

from .errors import KafkaError
from .status import StreamFailure, code_of_reason, failure_text

_ADDRESS: Final = (
    "bootstrap.servers is the coordinator's address, the one of `sharecoord serve --listen`"
    " (port 7070 by default)"
)


class _Case(NamedTuple):
    """A way to fail: the pattern that shows it in the status, and what to say."""

    pattern: str
    what: str
    fix: str
    code: int = KafkaError._TRANSPORT


# The first that fits counts: gRPC wraps the cause into more general words.
_UNREACHED: Final = (
    _Case(
        r"hostname lookup|domain name not found|dns|errors resolving|name resolution",
        "the host name is not known",
        f"Correct bootstrap.servers, or the DNS entry: {_ADDRESS}.",
        KafkaError._RESOLVE,
    ),
    _Case(
        r"certificate_verify_failed",
        "the certificate there is signed by no CA that this client knows",
        "Give the CA in ssl.ca.location.",
        KafkaError._SSL,
    ),
    _Case(
        r"hostname verification",
        "the certificate there is for another host name",
        "Use a name of the certificate in bootstrap.servers, or add this one to the certificate.",
        KafkaError._SSL,
    ),
    _Case(
        r"wrong_version_number",
        "what listens there does not speak TLS",
        "Set security.protocol to plaintext, or give the coordinator tls.cert.file and"
        " tls.key.file.",
        KafkaError._SSL,
    ),
    _Case(
        r"certificate_required|handshake",
        "the TLS handshake failed",
        "Does the coordinator have TLS (else set security.protocol to plaintext), and does it want"
        f" a certificate of this client (ssl.certificate.location)? {_ADDRESS}.",
        KafkaError._SSL,
    ),
    _Case(
        r"http/2|http1|http2 header",
        "something that is no gRPC server, such as an HTTP server or proxy, answers there",
        f"Correct the address: {_ADDRESS}.",
    ),
    _Case(
        r"connection refused|no such file",
        "nothing listens there",
        f"Start the coordinator (`sharecoord serve`), or correct the address: {_ADDRESS}.",
    ),
    _Case(
        r"reset by peer|socket closed|broken pipe|goaway|end of (file|stream)",
        "something listens there and hangs up",
        f"Is this a Kafka broker? {_ADDRESS}. If the coordinator has TLS, set security.protocol to"
        " ssl; if it wants certificates of its clients, give one in ssl.certificate.location and"
        " ssl.key.location.",
    ),
    _Case(
        r"ping timeout|keepalive timeout",
        "what served this consumer keeps its connection and answers nothing",
        f"Is the coordinator stopped, or its host frozen or cut off? {_ADDRESS}.",
    ),
    _Case(
        r"no route|unreachable|time(d )?out|deadline",
        "the host can not be reached",
        f"Is it up, and does no firewall drop the connection? {_ADDRESS}.",
    ),
)

_BY_CODE: Final = {
    "OK": (
        "something takes the stream there and ends it without an answer",
        "Is there a proxy in between that does not pass gRPC streams on?",
    ),
    # Not from the wire: the join got no answer in `socket.connection.setup.timeout.ms`.
    "DEADLINE_EXCEEDED": (
        "nobody answers the join",
        f"Is the coordinator stopped or overloaded, or does a firewall drop packets? {_ADDRESS}.",
    ),
    "RESOURCE_EXHAUSTED": (
        "what serves there takes no message of this size, or no more calls",
        "Raise the coordinator's limits.request.max.bytes, or subscribe to fewer topics.",
    ),
}

_BY_REASON: Final = {
    "DRAINING": "It goes down: start it again, or name another coordinator in bootstrap.servers.",
    "STORE_UNAVAILABLE": "Its database is away: see store.url and the coordinator's log.",
    "STORE_OUTCOME_UNKNOWN": "Its database is away: see store.url and the coordinator's log.",
    "KAFKA_UNAVAILABLE": "It can not reach Kafka: see its kafka.bootstrap.servers and the brokers.",
    "UNAUTHENTICATED": "It does not accept the credentials: see sasl.* and ssl.certificate.*.",
    "AUTHORIZATION_FAILED": "Its security.rules.file does not allow it.",
    "QUOTA_EXCEEDED": "This consumer's principal uses as much as it may: see the rules' quotas.",
    "KEYS_UNAVAILABLE": "It has no keys of the identity provider: see its security.oidc.jwks.",
    "LIMIT_EXCEEDED": "It has reached a limit, which the text names.",
}


def no_coordinator(address: str, failure: StreamFailure | None, waited_s: float) -> KafkaError:
    """The error for a consumer that has not been joined for `waited_s` seconds.

    `failure` is how the last attempt ended, at `address`; None while it is under way.
    """
    if failure is None:
        failure = StreamFailure("DEADLINE_EXCEEDED", "no answer to the join yet")
    if failure.reason:
        fix = _BY_REASON.get(failure.reason, "See the coordinator's log.")
        since = f"answers, but has not served this consumer for {waited_s:.0f} s"
        text = f"coordinator {address} {since} ({failure_text(failure)}). {fix}"
        return KafkaError(code_of_reason(failure.reason), text, retriable=True)
    who, code, what, fix = _explain(failure)
    since = f"{who} for {waited_s:.0f} s"
    text = f"{address}: {since}: {what} ({failure_text(failure)}). {fix}"
    return KafkaError(code, text, retriable=True)


def _explain(failure: StreamFailure) -> tuple[str, int, str, str]:
    """The failing party, Kafka's code, the cause, and the fix."""
    nobody = "no coordinator has answered there"
    # A coordinator may be there, but gRPC itself has ended the call.
    unserved = "this consumer has not been served there"
    if failure.code in _BY_CODE:
        who = nobody if failure.code == "DEADLINE_EXCEEDED" else unserved
        return who, KafkaError._TRANSPORT, *_BY_CODE[failure.code]
    for case in _UNREACHED:
        if re.search(case.pattern, failure.details, re.IGNORECASE):
            return nobody, case.code, case.what, case.fix
    if failure.code == "UNAVAILABLE":
        what = "the address can not be reached, or what is there turns this consumer away"
        fix = f"Is this a Kafka broker? {_ADDRESS}. Look at the log of what is there."
        return unserved, KafkaError._TRANSPORT, what, fix
    what = "what serves there fails without a reason of a coordinator"
    return unserved, KafkaError._TRANSPORT, what, f"Look at its log. {_ADDRESS}."


def starts_at_end(group: str, topic: str, address: str) -> str:
    """The warning that a new group gets nothing that is in its topic already, and how to get it."""
    server, name = f"--bootstrap-server {address}", shlex.quote(group)
    return (
        f"group {group!r} is new on topic {topic!r} and starts at its end: it gets the records "
        "that come from now on (share.auto.offset.reset=latest). For those that are there already: "
        f"sharecoord groups {server} --group {name} --topic {topic} --reset-offsets --to-earliest "
        f"--execute --force; for topics that it reads later: sharecoord configs {server} "
        f"--entity-type groups --entity-name {name} --alter --add-config "
        "share.auto.offset.reset=earliest (or latest, and this is not said again)"
    )


def newly_refused(refused: Mapping[str, str], told: set[str]) -> list[KafkaError]:
    """Errors of topics that Kafka refuses and that were not told yet; updates `told`.

    `refused` has what to allow, by topic.
    """
    fresh = sorted(refused.keys() - told)
    told.clear()
    told.update(refused)
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    return [KafkaError(code, refused[topic]) for topic in fresh]
