"""What becomes of librdkafka's settings when batches are read over a connection of our own.

Every key of librdkafka that concerns connections or reading stands in exactly one table: honoured,
harmless to leave out (with the reason), or beyond this reader: then librdkafka reads. A test asks
librdkafka itself for its keys. A key under `ssl.` or `sasl.` that no table has is new, and beyond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sharecoord.config.kafka_keys import is_secret_kafka_key
from sharecoord.errors import InvalidConfigError

Settings = Mapping[str, str | int | float | bool]
"""librdkafka's keys and values."""

SASL: Final = frozenset({"sasl_plaintext", "sasl_ssl"})
TLS: Final = frozenset({"ssl", "sasl_ssl"})
PROTOCOLS: Final = frozenset({"plaintext"}) | SASL | TLS

SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism → hash function."""
MECHANISMS: Final = ("PLAIN", *SCRAM, "OAUTHBEARER")

_HONOURED: Final = """
    security.protocol sasl.mechanism sasl.mechanisms sasl.username sasl.password
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config
    sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url enable.sasl.oauthbearer.unsecure.jwt
    https.ca.location https.ca.pem
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites
    ssl.crl.location ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password
    ssl.key.pem enable.ssl.certificate.verification
    broker.address.family client.id connections.max.idle.ms receive.message.max.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.timeout.ms
"""
HONOURED: Final = frozenset(_HONOURED.split())
"""Read by this package's connections."""

_READING: Final = """
    bootstrap.servers metadata.broker.list client.rack check.crcs fetch.error.backoff.ms
    fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.wait.max.ms
    max.partition.fetch.bytes metadata.max.age.ms retry.backoff.max.ms retry.backoff.ms
    topic.metadata.propagation.max.ms topic.metadata.refresh.interval.ms
"""
READING: Final = frozenset(_READING.split())
"""Not about connections: for those who look up leaders and fetch over them."""

_GSSAPI: Final = "GSSAPI alone reads it, and GSSAPI is beyond"
_QUEUE: Final = "librdkafka's own queues; what is read ahead here is bound by memory.limit"
_LOG: Final = "librdkafka's own log"
_OURS: Final = "the coordinator's metrics and log take its place"
_NEVER: Final = "librdkafka says that it is no longer used"
_NO_GROUP: Final = "reading is in no group of Kafka's"

HARMLESS: Final[Mapping[str, str]] = {
    "sasl.kerberos.keytab": _GSSAPI,
    "sasl.kerberos.kinit.cmd": _GSSAPI,
    "sasl.kerberos.min.time.before.relogin": _GSSAPI,
    "sasl.kerberos.principal": _GSSAPI,
    "sasl.kerberos.service.name": _GSSAPI,
    "sasl.oauthbearer.sub.claim.name": "who a token is for is read by the broker, not by us",
    "ssl.engine.id": "without ssl.engine.location no engine is loaded",
    "ssl.keystore.password": "without ssl.keystore.location there is no store",
    "api.version.request.timeout.ms": "socket.connection.setup.timeout.ms bounds the greeting",
    "api.version.fallback.ms": "for brokers before 0.10; 2.8 is the oldest here",
    "broker.version.fallback": "for brokers before 0.10; 2.8 is the oldest here",
    "broker.address.ttl": "names are looked up for each connection",
    "client.software.name": "the broker is told sharecoord's own name",
    "client.software.version": "the broker is told sharecoord's own version",
    "enable.sparse.connections": "connections are made when they are used first",
    "enable.metrics.push": _OURS,
    "statistics.interval.ms": _OURS,
    "debug": _LOG,
    "log.connection.close": _LOG,
    "log.queue": _LOG,
    "log.thread.name": _LOG,
    "log_level": _LOG,
    "enable.random.seed": "a matter of the C library",
    "internal.termination.signal": "a matter of librdkafka's threads",
    "reconnect.backoff.jitter.ms": _NEVER,
    "socket.blocking.max.ms": _NEVER,
    "topic.metadata.refresh.fast.cnt": _NEVER,
    "topic.metadata.refresh.fast.interval.ms": "retry.backoff.ms takes its place",
    "topic.metadata.refresh.sparse": "only topics that are read are asked for",
    "metadata.recovery.strategy": "with no broker left, the configured ones are asked again",
    "metadata.recovery.rebootstrap.trigger.ms": "with no broker left, this is done at once",
    "metadata.request.timeout.ms": "socket.timeout.ms bounds every request",
    "socket.max.fails": "the first request that is late ends the connection: the default, 1",
    "socket.nagle.disable": "always so: requests are small, and answers are waited for",
    "socket.receive.buffer.bytes": "the kernel sizes it by need, and larger than one that is set",
    "socket.send.buffer.bytes": "requests are small",
    "max.in.flight": "fetches go one at a time to a broker",
    "max.in.flight.requests.per.connection": "fetches go one at a time to a broker",
    "message.copy.max.bytes": "a matter of producing",
    "message.max.bytes": "a matter of producing",
    "fetch.queue.backoff.ms": _QUEUE,
    "queued.max.messages.kbytes": _QUEUE,
    "queued.min.messages": _QUEUE,
    "consume.callback.max.messages": _QUEUE,
    "coordinator.query.interval.ms": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "max.poll.records": "for librdkafka's share consumer alone",
    "share.acknowledgement.mode": "for librdkafka's share consumer alone",
    "builtin.features": "it asks what librdkafka was built with",
}
"""Key → why nothing is lost when it is not read."""

BEYOND: Final[Mapping[str, tuple[str, ...]]] = {
    "plugin.library.paths": (),
    "test.mock.broker.rtt": ("0",),
    "test.mock.num.brokers": ("0",),
    "topic.blacklist": (),
    "client.dns.lookup": ("use_all_dns_ips", "default"),
    "api.version.request": ("true", "1", "t"),
    "ssl.ca.certificate.stores": (),
    "ssl.curves.list": (),
    "ssl.engine.location": (),
    "ssl.keystore.location": (),
    "ssl.providers": (),
    "ssl.sigalgs.list": (),
    "sasl.oauthbearer.grant.type": ("client_credentials",),
    "sasl.oauthbearer.metadata.authentication.type": ("none",),
    "sasl.oauthbearer.assertion.algorithm": ("rs256",),
    "sasl.oauthbearer.assertion.claim.aud": (),
    "sasl.oauthbearer.assertion.claim.exp.seconds": ("300",),
    "sasl.oauthbearer.assertion.claim.iss": (),
    "sasl.oauthbearer.assertion.claim.jti.include": ("false",),
    "sasl.oauthbearer.assertion.claim.nbf.seconds": ("60",),
    "sasl.oauthbearer.assertion.claim.sub": (),
    "sasl.oauthbearer.assertion.file": (),
    "sasl.oauthbearer.assertion.jwt.template.file": (),
    "sasl.oauthbearer.assertion.private.key.file": (),
    "sasl.oauthbearer.assertion.private.key.passphrase": (),
    "sasl.oauthbearer.assertion.private.key.pem": (),
}
"""Key → values, in lower case, that ask for nothing special; others only librdkafka can follow."""


def beyond(settings: Settings) -> str | None:
    """The first setting that only librdkafka can follow, as `key=value`; None = there is none.

    Keys of TLS count when TLS is used, those of SASL with SASL, those of OAUTHBEARER with it.
    """
    protocol = protocol_of(settings)
    mechanism = mechanism_of(settings) if protocol in SASL else ""
    if protocol in SASL and mechanism not in MECHANISMS:
        return f"sasl.mechanism={mechanism}"
    for key, value in settings.items():
        if _counts(key, protocol, mechanism) and _is_beyond(key, str(value).lower()):
            return key if is_secret_kafka_key(key) else f"{key}={value}"
    return None


def reads_all(settings: Settings) -> bool:
    """Whether each setting is read, and checked, by this package; no other needs librdkafka."""
    return settings.keys() <= HONOURED | READING


def _counts(key: str, protocol: str, mechanism: str) -> bool:
    if key.startswith("ssl."):
        return protocol in TLS
    if key.startswith("sasl.oauthbearer."):
        return mechanism == "OAUTHBEARER"
    return protocol in SASL if key.startswith("sasl.") else True


def _is_beyond(key: str, value: str) -> bool:
    if key in BEYOND:
        return value != "" and value not in BEYOND[key]
    new = key.startswith(("ssl.", "sasl.")) and key not in HONOURED and key not in HARMLESS
    return new and value != ""


def brokers_of(settings: Settings) -> str:
    """The brokers' addresses as configured, under either of librdkafka's names."""
    found = settings.get("bootstrap.servers") or settings.get("metadata.broker.list")
    return str(found or "?")


def protocol_of(settings: Settings) -> str:
    """How brokers are talked to, in lower case.

    Raises:
        InvalidConfigError: Kafka has no protocol of that name.
    """
    found = str(settings.get("security.protocol", "plaintext")).lower()
    if found not in PROTOCOLS:
        known = ", ".join(sorted(PROTOCOLS))
        raise InvalidConfigError(f"kafka.security.protocol is {found!r}; it is one of {known}")
    return found


def mechanism_of(settings: Settings) -> str:
    """The mechanism of SASL, under either of its names; GSSAPI when none is set."""
    return str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "GSSAPI")


def flag(settings: Settings, key: str, *, default: bool) -> bool:
    """A setting that is true or false, as librdkafka writes it.

    Raises:
        InvalidConfigError: It is neither.
    """
    text = str(settings.get(key, default)).strip().lower()
    if text not in ("true", "t", "1", "false", "f", "0"):
        raise InvalidConfigError(f"kafka.{key} is {text!r}; it is true or false")
    return text in ("true", "t", "1")


def number(settings: Settings, key: str, *, default: int, bounds: tuple[int, int]) -> int:
    """A whole number within librdkafka's bounds.

    Raises:
        InvalidConfigError: It is none, or out of bounds.
    """
    text = str(settings.get(key, default)).strip()
    low, high = bounds
    try:
        found = int(text)
    except ValueError:
        found = low - 1
    if not low <= found <= high:
        raise InvalidConfigError(f"kafka.{key} is {text!r}; it is a number from {low} to {high}")
    return found
