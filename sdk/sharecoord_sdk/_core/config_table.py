"""Every key of the configuration: what it means here, its default, its bounds, how it is read.

The names are Kafka's and librdkafka's, so that the dict of an existing share consumer serves. What
applies to the connection to the coordinator is used. What tunes a Kafka client, and can not change
what a program sees, is accepted with a debug line. What would change it is refused by name.
"""

# ruff: noqa: SIM905 - names that share one treatment are listed as words
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from .errors import KafkaError, KafkaException
from .texts import check_name, check_secret

CREATE_FAILED: Final = "Failed to create share consumer: "

_INT32_MAX: Final = 2**31 - 1
_DAY_MS: Final = 86_400_000
#: Keys whose values stand in no error.
SECRETS: Final = frozenset(
    {
        "sasl.jaas.config",
        "sasl.password",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "ssl.key.password",
        "ssl.key.pem",
    }
)
#: The largest `max.poll.records` that a coordinator takes in a join.
POLL_RECORDS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration key. `low` and `high` are inclusive; a refused key's `meaning` is the fix."""

    name: str
    #: Reads a value, or raises what the twin raises for it.
    read: Callable[[Setting, object], object]
    default: object
    meaning: str
    low: int = 0
    high: int = _INT32_MAX
    choices: tuple[str, ...] = ()
    #: Refused keys: values that change nothing and hence pass.
    harmless: tuple[str, ...] = ()
    #: False = accepted with a debug line: it tunes a Kafka client, and there is none.
    is_used: bool = True


# -- how values are read --------------------------------------------------------------------------


def invalid(text: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, text))


def read_text(setting: Setting, value: object) -> str | None:
    if value is None or setting.name.endswith(".location"):
        # A path stays here: file names need not be valid Unicode.
        return None if value is None else str(value)
    check = check_secret if setting.name in SECRETS else check_name
    try:
        return check(f'configuration property "{setting.name}"', str(value))
    except ValueError as error:
        raise invalid(str(error)) from None


def read_integer(setting: Setting, value: object) -> int:
    if value is None:
        text = f'Integer configuration property "{setting.name}" cannot be set to empty value'
        raise invalid(text)
    try:
        number = int(str(value), 0)
    except ValueError:
        text = f'Invalid value for configuration property "{setting.name}": {value!r}'
        raise invalid(text) from None
    if not setting.low <= number <= setting.high:
        bounds = f"is outside allowed range {setting.low}..{setting.high}"
        text = f'Configuration property "{setting.name}" value {number} {bounds}'
        raise invalid(text)
    return number


def read_choice(setting: Setting, value: object) -> str:
    chosen = str(value).lower()
    if chosen not in setting.choices:
        allowed = f"one of {', '.join(setting.choices)}"
        text = f'Invalid value "{value}" for configuration property "{setting.name}": {allowed}'
        raise invalid(text)
    return chosen


def read_callable(setting: Setting, value: object) -> object:
    if not callable(value):
        raise TypeError(f"expected {setting.name} property as a callable function")
    return value


def read_anything(_: Setting, value: object) -> object:
    return value


def read_inapplicable(setting: Setting, _: object) -> NoReturn:
    """Refuses as the twin does: share consumers have no such thing."""
    raise ValueError(f"{CREATE_FAILED}`{setting.name}` {setting.meaning}")


def read_refused(setting: Setting, value: object) -> object:
    """Refuses what would mislead if it were ignored."""
    if str(value).lower() not in setting.harmless:
        fix = f"is not supported here: {setting.meaning}"
        raise invalid(f'Configuration property "{setting.name}" {fix}')
    return value


# -- the table ------------------------------------------------------------------------------------


def _text(name: str, meaning: str, default: str | None = None) -> Setting:
    return Setting(name, read_text, default, meaning)


def _integer(name: str, default: int, low: int, high: int, meaning: str) -> Setting:
    return Setting(name, read_integer, default, meaning, low, high)


def _choice(name: str, default: str, choices: tuple[str, ...], meaning: str) -> Setting:
    return Setting(name, read_choice, default, meaning, choices=choices)


def _callable(name: str, meaning: str) -> Setting:
    return Setting(name, read_callable, None, meaning)


def _refused(name: str, fix: str, *harmless: str) -> Setting:
    return Setting(name, read_refused, None, fix, harmless=harmless)


_USED: Final = (
    _text(
        "bootstrap.servers",
        "Addresses of coordinators: host:port or unix:/path, separated by commas.",
        "localhost:7070",
    ),
    _text("metadata.broker.list", "Another name of bootstrap.servers."),
    _text("group.id", "The share group. Required."),
    _text("client.id", "Name of this client in listings and metrics.", "sharecoord-sdk"),
    _text("client.rack", "Where this client runs.", ""),
    _choice(
        "share.acknowledgement.mode",
        "implicit",
        ("implicit", "explicit"),
        "implicit: the next poll or commit accepts what the last poll returned. explicit: the"
        " program acknowledges every record (KIP-932).",
    ),
    _choice(
        "share.acquire.mode",
        "fair",
        ("fair", "batch_optimized", "record_limit"),
        "How records are handed out (KIP-1206); fair is this coordinator's own.",
    ),
    _integer("max.poll.records", 500, 1, _INT32_MAX, "Most records that one poll returns; strict."),
    _integer(
        "max.poll.interval.ms",
        300_000,
        1,
        _DAY_MS,
        "Longest time between two polls before the coordinator takes the member for dead.",
    ),
    _integer(
        "socket.timeout.ms", 60_000, 10, 300_000, "Longest time that close waits for the answer."
    ),
    _integer(
        "socket.connection.setup.timeout.ms",
        10_000,
        1_000,
        _INT32_MAX,
        "Time for a coordinator to answer a join, and time without any coordinator after which"
        " error_cb hears of it.",
    ),
    _integer("reconnect.backoff.ms", 50, 0, 3_600_000, "First wait before a reconnect; doubles."),
    _integer("reconnect.backoff.max.ms", 1_000, 0, 3_600_000, "Longest wait before a reconnect."),
    _integer(
        "default.api.timeout.ms",
        60_000,
        1,
        _INT32_MAX,
        "How long acknowledgements are tried again after errors that pass.",
    ),
    _integer(
        "sharecoord.buffer.records",
        100_000,
        1,
        10_000_000,
        "Most records that wait in this process; the coordinator sends fewer when it has learnt"
        " that fewer are worked off.",
    ),
    _integer(
        "sharecoord.buffer.bytes",
        64 * 1024 * 1024,
        1,
        _INT32_MAX,
        "Most bytes that wait in this process.",
    ),
    _choice(
        "sharecoord.record.batches",
        "auto",
        ("auto", "false"),
        "auto: record batches come as they lie in Kafka, compressed, and are opened here, where"
        " sharecoord-batches is installed (the extra fast). false: the coordinator opens them all.",
    ),
    _choice(
        "security.protocol",
        "plaintext",
        ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        "ssl: TLS to the coordinator. sasl_ssl: TLS and credentials with every call."
        " sasl_plaintext: credentials over a Unix socket, without TLS.",
    ),
    # Files of ssl.* are looked at for each connection; bad new ones leave the former in use.
    _text("ssl.ca.location", "File with the CA certificates (PEM) that signed the coordinator's."),
    _text("ssl.ca.pem", "The CA certificates themselves (PEM)."),
    _text("ssl.certificate.location", "File with this client's certificate chain (PEM)."),
    _text("ssl.certificate.pem", "This client's certificate chain itself (PEM)."),
    _text("ssl.key.location", "File with this client's private key (PEM)."),
    _text("ssl.key.pem", "This client's private key itself (PEM)."),
    _text("ssl.key.password", "Opens the private key; needs the extra sharecoord-sdk[tls]."),
    _text("sasl.mechanisms", "PLAIN or OAUTHBEARER; with sasl_ssl or sasl_plaintext.", "GSSAPI"),
    _text("sasl.mechanism", "Another name of sasl.mechanisms."),
    _text("sasl.username", "User name for PLAIN."),
    _text("sasl.password", "Password, or the user's token, for PLAIN."),
    _text("sasl.oauthbearer.config", "Handed to oauth_cb as it is.", ""),
    _choice(
        "sasl.oauthbearer.method",
        "default",
        ("default", "oidc"),
        "default: oauth_cb gives the tokens. oidc: an identity provider does, for this client's id"
        " and secret (OAuth 2's client credentials).",
    ),
    _text("sasl.oauthbearer.client.id", "This client's id at the identity provider."),
    _text("sasl.oauthbearer.client.secret", "This client's secret there."),
    _text("sasl.oauthbearer.client.credentials.client.id", "Another name of …client.id."),
    _text("sasl.oauthbearer.client.credentials.client.secret", "Another name of …client.secret."),
    _text("sasl.oauthbearer.scope", "What the token is asked for; optional."),
    _text(
        "sasl.oauthbearer.token.endpoint.url",
        "Where the identity provider gives tokens: https, or http on this machine.",
    ),
    _text("https.ca.location", "File with the CAs (PEM) of the identity provider's certificate."),
    _text("https.ca.pem", "Those CAs themselves (PEM)."),
    _callable(
        "error_cb",
        "Called with a KafkaError when no coordinator answers, or when no new token can be had.",
    ),
    _callable(
        "oauth_cb",
        "Called with sasl.oauthbearer.config, in a thread of its own (async: in the loop); returns"
        " (token, expiry_s, ...).",
    ),
    Setting("logger", read_anything, None, "A logging.Logger; sharecoord_sdk by default."),
)

_ACCEPTED_NAMES: Final = """
    acks api.version.fallback.ms api.version.request api.version.request.timeout.ms
    auto.commit.enable auto.commit.interval.ms batch.num.messages batch.size
    broker.address.family broker.address.ttl broker.version.fallback check.crcs
    client.dns.lookup client.software.name client.software.version compression.codec
    compression.level compression.type connections.max.idle.ms coordinator.query.interval.ms
    debug default.topic.config delivery.report.only.error delivery.timeout.ms
    enable.auto.offset.store enable.gapless.guarantee enable.idempotence enable.metrics.push
    enable.random.seed enable.sparse.connections fetch.max.bytes fetch.max.wait.ms
    fetch.message.max.bytes fetch.min.bytes fetch.wait.max.ms linger.ms log.connection.close
    log.queue log.thread.name log_level max.in.flight max.in.flight.requests.per.connection
    max.partition.fetch.bytes message.max.bytes message.send.max.retries message.timeout.ms
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metadata.request.timeout.ms offset.store.method offset.store.path
    offset.store.sync.interval.ms partitioner produce.offset.report
    queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queuing.strategy
    receive.message.max.bytes reconnect.backoff.jitter.ms request.required.acks
    request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms socket.blocking.max.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes stats_cb sticky.partitioning.linger.ms throttle_cb
    topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
""".split()

_CALLBACKS_NOBODY_CALLS: Final = ("stats_cb", "throttle_cb")

_ACCEPTED: Final = tuple(
    Setting(
        name,
        read_callable if name in _CALLBACKS_NOBODY_CALLS else read_anything,
        None,
        "Tunes a Kafka client; the coordinator's own Kafka client is configured there.",
        is_used=False,
    )
    for name in _ACCEPTED_NAMES
)

_READ_BY_KAFKA: Final = tuple(
    Setting(f"sasl.oauthbearer.{name}", read_anything, None, meaning, is_used=False)
    for name, meaning in (
        ("extensions", "SASL's extensions; a coordinator reads the token alone."),
        ("sub.claim.name", "Who a token is for is read by the coordinator."),
    )
)

_NOT_APPLICABLE: Final = "is not applicable for share consumer"
_BROKER_SIDE: Final = (
    "is not supported for `group.protocol=consumer` or share consumer. It is defined broker side"
)

_INAPPLICABLE: Final = tuple(
    Setting(name, read_inapplicable, None, why)
    for name, why in (
        ("allow.auto.create.topics", _NOT_APPLICABLE),
        ("auto.offset.reset", f"{_NOT_APPLICABLE}; set share.auto.offset.reset of the group"),
        ("consume.callback.max.messages", _NOT_APPLICABLE),
        ("enable.auto.commit", _NOT_APPLICABLE),
        ("enable.partition.eof", _NOT_APPLICABLE),
        ("fetch.error.backoff.ms", _NOT_APPLICABLE),
        ("fetch.queue.backoff.ms", _NOT_APPLICABLE),
        ("group.instance.id", _NOT_APPLICABLE),
        ("group.protocol", _NOT_APPLICABLE),
        ("group.protocol.type", _NOT_APPLICABLE),
        ("group.remote.assignor", _NOT_APPLICABLE),
        ("heartbeat.interval.ms", _BROKER_SIDE),
        ("isolation.level", f"{_NOT_APPLICABLE}; set share.isolation.level of the group"),
        ("message.copy.max.bytes", _NOT_APPLICABLE),
        ("partition.assignment.strategy", _NOT_APPLICABLE),
        ("queued.max.messages.kbytes", f"{_NOT_APPLICABLE}; use sharecoord.buffer.bytes"),
        ("queued.min.messages", f"{_NOT_APPLICABLE}; use sharecoord.buffer.records"),
        ("session.timeout.ms", _BROKER_SIDE),
        ("topic.blacklist", _NOT_APPLICABLE),
    )
)

_PEM_FIX: Final = "use ssl.ca.*, ssl.certificate.* and ssl.key.* with PEM files"
_GRANT_FIX: Final = "use client.id and client.secret, or get the token in an oauth_cb"
_INTERNAL_FIX: Final = "there is no such callback on a share consumer"

_REFUSED: Final = (
    _refused("interceptor.classes", "share consumers run no interceptors; remove it"),
    _refused("statistics.interval.ms", "the SDK emits no statistics; set 0", "0"),
    _refused("plugin.library.paths", "the SDK loads no plugins; remove it", ""),
    _refused("builtin.features", "the SDK is not librdkafka; remove it"),
    _refused(
        "enable.ssl.certificate.verification",
        "TLS here always verifies; give the CA in ssl.ca.location",
        "true",
    ),
    _refused(
        "ssl.endpoint.identification.algorithm",
        "TLS here always checks the host name; use https",
        "https",
    ),
    _refused("ssl.keystore.location", _PEM_FIX),
    _refused("ssl.keystore.password", _PEM_FIX),
    _refused("ssl.truststore.location", _PEM_FIX),
    _refused("ssl.truststore.password", _PEM_FIX),
    *(
        _refused(f"ssl.{name}", "gRPC's TLS has no such setting; remove it")
        for name in """
            ca.certificate.stores certificate.verify_cb cipher.suites crl.location
            curves.list engine.id engine.location providers sigalgs.list
        """.split()
    ),
    _refused("sasl.jaas.config", "give sasl.username and sasl.password instead"),
    *(
        _refused(f"sasl.kerberos.{name}", "GSSAPI is not supported; use PLAIN or OAUTHBEARER")
        for name in """
            keytab kinit.cmd min.time.before.relogin principal service.name
        """.split()
    ),
    _refused("enable.sasl.oauthbearer.unsecure.jwt", _GRANT_FIX, "false"),
    _refused("sasl.oauthbearer.grant.type", _GRANT_FIX, "client_credentials"),
    _refused("sasl.oauthbearer.metadata.authentication.type", _GRANT_FIX, "none"),
    *(
        _refused(f"sasl.oauthbearer.assertion.{name}", _GRANT_FIX)
        for name in """
            algorithm claim.aud claim.exp.seconds claim.iss claim.jti.include claim.nbf.seconds
            claim.sub file jwt.template.file private.key.file private.key.passphrase
            private.key.pem
        """.split()
    ),
    *(
        _refused(name, _INTERNAL_FIX)
        for name in """
            background_event_cb closesocket_cb connect_cb consume_cb dr_cb dr_msg_cb
            log_cb offset_commit_cb open_cb rebalance_cb resolve_cb socket_cb
        """.split()
    ),
)

_ALL: Final = (*_USED, *_ACCEPTED, *_READ_BY_KAFKA, *_INAPPLICABLE, *_REFUSED)

SETTINGS: Final[dict[str, Setting]] = {setting.name: setting for setting in _ALL}
