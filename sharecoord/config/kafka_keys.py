"""The keys under `kafka.`: those that the coordinator owns, secret ones, the names of all.

librdkafka itself decides whether a key exists, when a client is made (`sharecoord.kafka`); the
names here only serve to name the nearest one and to read environment variables, so a newer
librdkafka's new keys work without a change here.
"""

from __future__ import annotations

import re
from typing import Final

from sharecoord.config.setting import nearest
from sharecoord.errors import InvalidConfigError

_NAMES: Final = """
    acks allow.auto.create.topics api.version.fallback.ms api.version.request
    api.version.request.timeout.ms auto.commit.enable auto.commit.interval.ms
    auto.offset.reset batch.num.messages batch.size bootstrap.servers broker.address.family
    broker.address.ttl broker.version.fallback check.crcs client.dns.lookup client.id
    client.rack client.software.name client.software.version compression.codec
    compression.level compression.type connections.max.idle.ms consume.callback.max.messages
    coordinator.query.interval.ms debug delivery.report.only.error delivery.timeout.ms
    enable.auto.commit enable.auto.offset.store enable.gapless.guarantee enable.idempotence
    enable.metrics.push enable.partition.eof enable.random.seed
    enable.sasl.oauthbearer.unsecure.jwt enable.sparse.connections
    enable.ssl.certificate.verification fetch.error.backoff.ms fetch.max.bytes
    fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms
    group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms https.ca.location https.ca.pem internal.termination.signal
    isolation.level linger.ms log.connection.close log.queue log.thread.name log_level
    max.in.flight max.in.flight.requests.per.connection max.partition.fetch.bytes
    max.poll.interval.ms message.copy.max.bytes message.max.bytes message.send.max.retries
    message.timeout.ms metadata.broker.list metadata.max.age.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metadata.request.timeout.ms offset.store.method offset.store.path
    offset.store.sync.interval.ms partition.assignment.strategy partitioner
    plugin.library.paths produce.offset.report queue.buffering.backpressure.threshold
    queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms
    queued.max.messages.kbytes queued.min.messages queuing.strategy
    receive.message.max.bytes reconnect.backoff.jitter.ms reconnect.backoff.max.ms
    reconnect.backoff.ms request.required.acks request.timeout.ms retries
    retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal sasl.kerberos.service.name
    sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
    sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase
    sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id
    sasl.oauthbearer.client.secret sasl.oauthbearer.config sasl.oauthbearer.extensions
    sasl.oauthbearer.grant.type sasl.oauthbearer.metadata.authentication.type
    sasl.oauthbearer.method sasl.oauthbearer.scope sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    session.timeout.ms socket.blocking.max.ms socket.connection.setup.timeout.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable
    socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms
    ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location
    ssl.certificate.pem ssl.cipher.suites ssl.crl.location ssl.curves.list
    ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location ssl.key.location
    ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers
    ssl.sigalgs.list statistics.interval.ms sticky.partitioning.linger.ms
    test.mock.broker.rtt test.mock.num.brokers topic.blacklist
    topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
"""
LIBRDKAFKA_KEYS: Final = frozenset(_NAMES.split())

_CALLBACK: Final = "it takes a function of the program, not a text"

OWNED_KEYS: Final = {
    "auto.offset.reset": (
        "a position out of range must be seen and resolved by the coordinator; the group setting "
        "share.auto.offset.reset says where a group begins"
    ),
    "isolation.level": "the group setting share.isolation.level decides it",
    "enable.partition.eof": "the end of a partition is needed to conclude gaps, it is always on",
    **dict.fromkeys(
        (
            *("group.id", "group.instance.id", "group.protocol", "group.protocol.type"),
            *("group.remote.assignor", "partition.assignment.strategy"),
        ),
        "partitions are read by assignment, the coordinator is in no consumer group of Kafka's",
    ),
    **dict.fromkeys(
        (
            *("enable.auto.commit", "auto.commit.enable", "auto.commit.interval.ms"),
            *("enable.auto.offset.store", "offset.store.method", "offset.store.path"),
            "offset.store.sync.interval.ms",
        ),
        "progress is kept in the store; share.offsets.export.group shows it to other tools",
    ),
    **dict.fromkeys(
        (
            *("acks", "request.required.acks", "enable.idempotence", "message.timeout.ms"),
            "delivery.timeout.ms",
        ),
        "dead letters are always produced with acks=all and without a time limit",
    ),
    "transactional.id": (
        "the group setting errors.deadletterqueue.exactly.once derives one per partition"
    ),
    "delivery.report.only.error": "every dead letter's delivery must be reported",
    "allow.auto.create.topics": "reading must not create topics",
    "opaque": _CALLBACK,
    "default_topic_conf": "topic keys stand beside the others",
}

_SECRET_KEY: Final = re.compile(
    r"password|passphrase|secret|jaas|key\.pem|keystore\.key|sasl\.oauthbearer\.config"
)
_BY_FOLDED: Final = {key.replace("_", "."): key for key in LIBRDKAFKA_KEYS}


def check_kafka_key(key: str, *, where: str = "") -> None:
    """Refuses a key that the coordinator must own or that cannot be written as text.

    Args:
        key: A key of librdkafka, without `kafka.`.
        where: Place of the key, put in front of an error.
    """
    reason = OWNED_KEYS.get(key) or (_CALLBACK if key.endswith("_cb") else None)
    if reason is not None:
        place = f"{where}: " if where else ""
        raise InvalidConfigError(
            f'{place}the Kafka key "{key}" cannot be set: {reason}. Remove it.',
            metadata={"key": f"kafka.{key}"},
        )


def unknown_kafka_key(key: str) -> InvalidConfigError:
    """The error for a key that librdkafka does not have, with the nearest one that it has."""
    near = nearest(key, LIBRDKAFKA_KEYS - OWNED_KEYS.keys())
    fix = f'Did you mean "{near}"?' if near else "See librdkafka's CONFIGURATION.md."
    return InvalidConfigError(f'unknown Kafka key "{key}". {fix}', metadata={"key": f"kafka.{key}"})


def is_secret_kafka_key(key: str) -> bool:
    """Whether the value of the key must never be shown."""
    return bool(_SECRET_KEY.search(key))


def kafka_key_of_variable(name: str) -> str:
    """The key that an environment variable's part after `KAFKA__` stands for.

    `_` stands for `.`, except in the few keys of librdkafka that have a `_` themselves
    (`log_level`).
    """
    dotted = name.lower().replace("_", ".")
    return _BY_FOLDED.get(dotted, dotted)
