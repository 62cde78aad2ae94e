"""Settings of a coordinator process, by section: name, meaning, unit, default and bounds.

Names are `section.key`. `kafka.*` (librdkafka's keys, passed through) and `group.*` (defaults for
all groups) stand beside these; `sharecoord.config.process` reads them all.
"""

# The fields are made by functions that return `dataclasses.field`: nothing mutable is shared.
# ruff: noqa: RUF009

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sharecoord.config.endpoints import (
    ALL_INTERFACES,
    AuditSink,
    EventsSink,
    ListenAddress,
    StoreKind,
    StoreUrl,
    TcpAddress,
    parse_audit_sink,
    parse_events_sink,
    parse_listen_address,
    parse_store_url,
)
from sharecoord.config.setting import (
    bool_setting,
    choice_setting,
    custom_setting,
    duration_setting,
    float_setting,
    int_setting,
    size_setting,
    str_setting,
)
from sharecoord.config.values import mask_url

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
_TIB: Final = 1 << 40
_COORDINATOR_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,255}", re.ASCII)

DEFAULT_LISTEN: Final[ListenAddress] = TcpAddress("localhost", 7070)
DEFAULT_STORE: Final = StoreUrl(
    StoreKind.SQLITE, "sqlite:///$XDG_STATE_HOME/sharecoord/sharecoord.db"
)
"""Placeholder of the default file until `load` knows the environment."""


class ReaderKind(StrEnum):
    """Who reads records from Kafka."""

    AUTO = "auto"
    RAW = "raw"
    LIBRDKAFKA = "librdkafka"


class Mode(StrEnum):
    """Whether other coordinators share the store."""

    STANDALONE = "standalone"
    FLEET = "fleet"


class CertificateName(StrEnum):
    """The part of a client's certificate that names its principal."""

    URI = "uri"
    DNS = "dns"
    EMAIL = "email"
    COMMON_NAME = "common-name"


class LogLevel(StrEnum):
    """The least severe message that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log line looks."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


def _check_coordinator_id(text: str) -> str:
    if text and not _COORDINATOR_ID.fullmatch(text):
        raise ValueError('1 to 128 of a-z, A-Z, 0-9, ".", "_", "-"')
    return text


def _parse_socket_mode(text: str) -> int:
    modes = {"0600": 0o600, "0660": 0o660, "0666": 0o666}
    mode = modes.get(text if text.startswith("0") else f"0{text}")
    if mode is None:
        raise ValueError("0600, 0660 or 0666")
    return mode


def _parse_certificate_names(text: str) -> tuple[CertificateName, ...]:
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    known = {each.value: each for each in CertificateName}
    if not words or not known.keys() >= set(words):
        raise ValueError("one or more of " + ", ".join(known))
    return tuple(known[word] for word in words)


def _render_certificate_names(names: tuple[CertificateName, ...]) -> str:
    return ",".join(name.value for name in names)


def _check_host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("a host name or an address without a port, such as localhost or 0.0.0.0")
    return text


def _parse_advertised(text: str) -> ListenAddress | None:
    if not text:
        return None
    address = parse_listen_address(text)
    if isinstance(address, TcpAddress) and (address.port == 0 or address.host in ALL_INTERFACES):
        raise ValueError("an address that others can connect to: a real host and a real port")
    return address


def _parse_kafka_ports(text: str) -> tuple[TcpAddress, ...]:
    return tuple(_parse_kafka_port(word) for word in text.split(",") if word.strip())


def _parse_kafka_port(text: str) -> TcpAddress:
    if not text.strip().startswith("unix:"):
        try:
            address = parse_listen_address(text)
        except ValueError as error:
            raise ValueError(str(error).removesuffix(", or unix:PATH")) from None
        if isinstance(address, TcpAddress):
            return address
    raise ValueError("HOST:PORT: Kafka's clients connect over TCP")


def _parse_advertised_ports(text: str) -> tuple[TcpAddress, ...]:
    found = _parse_kafka_ports(text)
    if any(each.port == 0 or each.host in ALL_INTERFACES for each in found):
        raise ValueError("addresses that others can connect to: real hosts and real ports")
    return found


def _render_addresses(addresses: tuple[TcpAddress, ...]) -> str:
    return ",".join(map(str, addresses))


def _parse_peer_address(text: str) -> TcpAddress | None:
    address = _parse_advertised(text)
    if address is None or isinstance(address, TcpAddress):
        return address
    raise ValueError("HOST:PORT: coordinators reach each other over TCP")


def _render_optional(address: ListenAddress | None) -> str:
    return "" if address is None else str(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the state is kept."""

    url: StoreUrl = custom_setting(
        "store.url",
        "The database: `sqlite:///PATH`, `postgresql://…`, `mysql://…`, or `memory:` (nothing "
        "survives). By default a SQLite file below `$XDG_STATE_HOME`, else `~/.local/state`.",
        default=DEFAULT_STORE,
        parser=parse_store_url,
        renderer=lambda store: store.url,
        masker=mask_url,
    )
    lock_timeout_ms: int = duration_setting(
        "store.lock.timeout.ms",
        "How long a transaction waits for a row that another one has locked.",
        default_ms=2_000,
        bounds_ms=(100, _MINUTE_MS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenConfig:
    """Where workers connect."""

    address: ListenAddress = custom_setting(
        "listen.address",
        "`HOST:PORT` or `unix:PATH`; port 0 = any free one.",
        default=DEFAULT_LISTEN,
        parser=parse_listen_address,
        renderer=str,
    )
    insecure: bool = bool_setting(
        "listen.insecure",
        "Serve other machines without TLS, or without knowing who they are. The start says so as a "
        "warning.",
        default=False,
    )
    socket_mode: int = custom_setting(
        "listen.socket.mode",
        "Who may connect to `unix:PATH`, as the file's mode: with `0600` its owner, whose name is "
        "then the principal; with `0660` its group as well, and since nobody knows which of its "
        "users it is, the principal is `User:unix-group-` and the group's name; with `0666` "
        "everybody, as `User:anonymous`.",
        default=0o600,
        parser=_parse_socket_mode,
        renderer=lambda mode: f"{mode:04o}",
    )
    reflection: bool = bool_setting(
        "listen.reflection",
        "Whether tools such as grpcurl may ask which calls there are.",
        default=True,
    )
    ready_file: str = str_setting(
        "listen.ready.file",
        "File into which the address is written once the process serves; empty = none.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPortConfig:
    """Where share consumers connect that speak Kafka's own protocol (docs/wire.md)."""

    listen: tuple[TcpAddress, ...] = custom_setting(
        "kafka.port.listen",
        "`HOST:PORT` for share consumers that speak Kafka's own protocol, or several with commas "
        "between them; empty = none. With several processes, process N of them (from 0) adds N to "
        "the ports.",
        default=(),
        parser=_parse_kafka_ports,
        renderer=_render_addresses,
    )
    advertised: tuple[TcpAddress, ...] = custom_setting(
        "kafka.port.advertised",
        "Where members reach `kafka.port.listen`, one address for each of its addresses, in their "
        "order: the name of a service or a proxy, or of this machine. Empty = where it listens. "
        "With several processes, process N adds N to the ports.",
        default=(),
        parser=_parse_advertised_ports,
        renderer=_render_addresses,
    )
    max_connections: int = int_setting(
        "kafka.port.max.connections",
        "How many clients' connections there may be, at most half of the files that the process "
        "may open. A member has two or three. Whoever comes beyond it is refused, so that those "
        "who are there go on.",
        default=10_000,
        bounds=(1, 1_000_000),
        unit="connections",
    )
    max_connections_per_ip: int = int_setting(
        "kafka.port.max.connections.per.ip",
        "How many of them may be of one address: one that takes all it can get leaves room for "
        "others. Raise it where all clients come through one proxy.",
        default=2_500,
        bounds=(1, 1_000_000),
        unit="connections",
    )
    authentication_timeout_ms: int = duration_setting(
        "kafka.port.authentication.timeout.ms",
        "A client that has not ended the TLS handshake by then, or has not proven who it is, "
        "where that is asked for, is sent away.",
        default_ms=10_000,
        bounds_ms=(100, 10 * _MINUTE_MS),
    )
    connections_max_idle_ms: int = duration_setting(
        "kafka.port.connections.max.idle.ms",
        "After which silence a connection is ended, as with Kafka's `connections.max.idle.ms`. "
        "One whose request waits for its answer is not silent.",
        default_ms=10 * _MINUTE_MS,
        bounds_ms=(1_000, 24 * _HOUR_MS),
    )
    connections_max_reauth_ms: int = duration_setting(
        "kafka.port.connections.max.reauth.ms",
        "After which time a client that uses SASL has to prove again who it is, as with Kafka's "
        "`connections.max.reauth.ms`; its credential may end before. 0 = when that ends.",
        default_ms=0,
        bounds_ms=(0, 30 * 24 * _HOUR_MS),
    )
    passthrough: bool = bool_setting(
        "kafka.port.passthrough",
        "Pass on to Kafka what the port does not serve itself (producing, plain consumers, "
        "transactions, topics), so that `bootstrap.servers` of an application may name the port "
        "alone. Brokers take all of it for the coordinator's own, so with `security.rules.file` a "
        "caller needs `pass-through` on the cluster. One address in `kafka.port.listen` and "
        "`coordinator.processes=1` go with it, and `limits.request.max.bytes` bounds each request.",
        default=False,
    )
    passthrough_ports: int = int_setting(
        "kafka.port.passthrough.ports",
        "First of the ports that stand for Kafka's brokers: the broker with id N is at this port "
        "plus N, on the host of `kafka.port.listen`, and clients are told it with the host of "
        "`kafka.port.advertised`. 0 = the port behind that of `kafka.port.listen`. A broker whose "
        "port would be beyond 65535 is not passed on to, and the log says so.",
        default=0,
        bounds=(0, 65_535),
        unit="port",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS of the listener, and of the Kafka port."""

    cert_file: str = str_setting(
        "tls.cert.file", "PEM file with the listener's certificate chain; empty = no TLS."
    )
    key_file: str = str_setting("tls.key.file", "PEM file with the certificate's private key.")
    client_ca_file: str = str_setting(
        "tls.client.ca.file",
        "PEM file with the authorities of client certificates; when it is set, every client must "
        "show one.",
    )
    peer_name: str = str_setting(
        "tls.peer.name",
        "Name that the certificates of the other coordinators of a fleet must bear; empty = the "
        "host of their addresses for peers. One certificate for all, with one name, is enough.",
    )

    @property
    def enabled(self) -> bool:
        """Whether the listener speaks TLS."""
        return bool(self.cert_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Who may connect, what they may do, and what is written down of it (docs/security.md)."""

    certificate_names: tuple[CertificateName, ...] = custom_setting(
        "security.certificate.names",
        "Where the principal of a client's certificate stands, the first one that it has: `uri` "
        "(such as a SPIFFE id), `dns`, `email` of its alternative names, or `common-name`. Used "
        "with `tls.client.ca.file`.",
        default=(CertificateName.URI, CertificateName.DNS, CertificateName.EMAIL),
        parser=_parse_certificate_names,
        renderer=_render_certificate_names,
    )
    tokens_file: str = str_setting(
        "security.tokens.file",
        "File with the names and SHA-256 sums of tokens, which `sharecoord tokens create` writes; "
        "empty = no tokens. Read again when it changes.",
    )
    oidc_issuer: str = str_setting(
        "security.oidc.issuer",
        "The issuer (`iss`) of JSON Web Tokens that are accepted; empty = none are.",
    )
    oidc_audience: str = str_setting(
        "security.oidc.audience", "The audience (`aud`) that a token must be for."
    )
    oidc_jwks: str = str_setting(
        "security.oidc.jwks",
        "The issuer's keys: an `https://` address (`http://` on this machine only), or a file.",
    )
    oidc_jwks_ca_file: str = str_setting(
        "security.oidc.jwks.ca.file",
        "PEM file with the authorities of that address; empty = those of the system.",
    )
    oidc_principal_claim: str = str_setting(
        "security.oidc.principal.claim", "The claim that names the principal.", default="sub"
    )
    oidc_groups_claim: str = str_setting(
        "security.oidc.groups.claim",
        "The claim with the principal's groups, a text or a list of texts.",
        default="groups",
    )
    oidc_clock_skew_ms: int = duration_setting(
        "security.oidc.clock.skew.ms",
        "How far the issuer's clock may be from this one.",
        default_ms=30_000,
        bounds_ms=(0, 10 * _MINUTE_MS),
    )
    rules_file: str = str_setting(
        "security.rules.file",
        "YAML file that says who may do what, and how much; empty = whoever gets in may do "
        "everything. Read again when it changes.",
    )
    audit_sink: AuditSink = custom_setting(
        "security.audit.sink",
        "Where administrative calls and refusals are written, as lines of JSON: `off`, `stdout`, "
        "`file:PATH` or `kafka:TOPIC`.",
        default=AuditSink(),
        parser=parse_audit_sink,
        renderer=str,
    )
    audit_queue_max_bytes: int = size_setting(
        "security.audit.queue.max.bytes",
        "How many bytes of audit lines may wait to be written; what does not fit is dropped and "
        "counted.",
        default_bytes=4 * _MIB,
        bounds_bytes=(64 * _KIB, _GIB),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Identity of this process, and what it shares with others."""

    id: str = str_setting(
        "coordinator.id",
        "Name of this process in the store, in logs and in metrics; empty = made from host name "
        "and process.",
        check=_check_coordinator_id,
    )
    mode: Mode = choice_setting(
        "coordinator.mode",
        "`standalone`: this process alone uses the store. `fleet`: many do, on PostgreSQL or "
        "MySQL.",
        default=Mode.STANDALONE,
    )
    processes: int = int_setting(
        "coordinator.processes",
        "How many coordinators run behind one TCP port on this machine; more than 1 needs the "
        "mode `fleet`.",
        default=1,
        bounds=(1, 64),
        unit="processes",
    )
    advertised_address: ListenAddress | None = custom_setting(
        "coordinator.advertised.address",
        "Where members reach this process; empty = the listen address.",
        default=None,
        parser=_parse_advertised,
        renderer=_render_optional,
    )
    peer_address: TcpAddress | None = custom_setting(
        "coordinator.peer.address",
        "Where the other coordinators of a fleet reach this one, such as a proxy that leads to "
        "`coordinator.peer.port`. Empty = that port on the host of the listen address, or, when "
        "that is all interfaces, on the host of the advertised address. With several processes, "
        "process N of them (from 0) adds N to the port.",
        default=None,
        parser=_parse_peer_address,
        renderer=_render_optional,
    )
    peer_port: int = int_setting(
        "coordinator.peer.port",
        "Port at which a coordinator of a fleet listens for the others, on the host of the listen "
        "address (`localhost` with `unix:PATH`); no worker is served there. With several "
        "processes, process N of them (from 0) adds N to it; 0 = any free one.",
        default=0,
        bounds=(0, 65_535),
    )
    lease_renew_interval_ms: int = duration_setting(
        "coordinator.lease.renew.interval.ms",
        "How often the lease in the store is renewed.",
        default_ms=1_000,
        bounds_ms=(100, _MINUTE_MS),
    )
    lease_timeout_ms: int = duration_setting(
        "coordinator.lease.timeout.ms",
        "After which silence, by the store's clock, a coordinator counts as dead.",
        default_ms=4_000,
        bounds_ms=(500, 10 * _MINUTE_MS),
    )
    drain_timeout_ms: int = duration_setting(
        "coordinator.drain.timeout.ms",
        "How long a shutdown may take to hand back what no handler has seen and to commit.",
        default_ms=2_000,
        bounds_ms=(0, 10 * _MINUTE_MS),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsConfig:
    """The log of what happened to records."""

    sink: EventsSink = custom_setting(
        "events.sink",
        "`off`, `parquet:DIRECTORY` or `kafka:TOPIC`.",
        default=EventsSink(),
        parser=parse_events_sink,
        renderer=str,
    )
    sample_interval_ms: int = duration_setting(
        "events.sample.interval.ms",
        "How often each partition's figures are sampled.",
        default_ms=1_000,
        bounds_ms=(100, _HOUR_MS),
    )
    file_max_bytes: int = size_setting(
        "events.file.max.bytes",
        "At which size a Parquet file is closed and a new one begun.",
        default_bytes=128 * _MIB,
        bounds_bytes=(_MIB, 16 * _GIB),
    )
    file_max_age_ms: int = duration_setting(
        "events.file.max.age.ms",
        "At which age a Parquet file is closed and a new one begun.",
        default_ms=5 * _MINUTE_MS,
        bounds_ms=(1_000, 24 * _HOUR_MS),
    )
    pipe_max_bytes: int = size_setting(
        "events.pipe.max.bytes",
        "How many bytes of events may wait for the writer; what does not fit is dropped and "
        "counted.",
        default_bytes=16 * _MIB,
        bounds_bytes=(64 * _KIB, _GIB),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """How records are read from Kafka. All other `kafka.*` keys are those of its clients."""

    kind: ReaderKind = choice_setting(
        "kafka.reader",
        "Who reads records and asks for topics and offsets: `raw`, connections of the "
        "coordinator's own, which take batches as they are stored and open them only to deliver "
        "them (less CPU and memory); or `librdkafka`, which opens every record. `auto` is `raw` "
        "unless a `kafka.*` key asks for what only librdkafka can do; the log says at the start "
        "which one reads, and why.",
        default=ReaderKind.AUTO,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """How much memory is used, and what happens near the limit."""

    limit_bytes: int = size_setting(
        "memory.limit",
        "Limit of ranges, caches, pending batches, send buffers and key tables together.",
        default_bytes=512 * _MIB,
        bounds_bytes=(64 * _MIB, _TIB),
    )
    read_stop_ratio: float = float_setting(
        "memory.read.stop.ratio",
        "Above this part of the limit, groups that use more than their share read no new records.",
        default=0.80,
        bounds=(0.1, 1.0),
    )
    acquire_stop_ratio: float = float_setting(
        "memory.acquire.stop.ratio",
        "Above this part of the limit, groups that use more than their share acquire nothing.",
        default=0.95,
        bounds=(0.1, 1.0),
    )
    cache_max_bytes: int = size_setting(
        "memory.cache.max.bytes",
        "How much of the limit the cache of records for redelivery may take, of all groups "
        "together. While it is not set, it is at most a quarter of the limit.",
        default_bytes=128 * _MIB,
        bounds_bytes=(_MIB, _TIB),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Limits of what clients may ask for."""

    groups_max: int = int_setting(
        "limits.groups.max",
        "How many groups there may be. Each is kept, with or without members, until it is deleted, "
        "so a client that makes up names would fill memory and store.",
        default=10_000,
        bounds=(1, 1_000_000),
        unit="groups",
    )

    transactional_producers_max: int = int_setting(
        "limits.transactional.producers.max",
        "How many producers are kept for share-partitions whose dead letters go exactly once; each "
        "is a client of Kafka with 2 MiB and threads of its own. Beyond it the one that was not "
        "used for the longest time is closed, and opened again when it has letters.",
        default=32,
        bounds=(1, 1_000),
        unit="producers",
    )
    stream_unsent_max_bytes: int = size_setting(
        "limits.stream.unsent.max.bytes",
        "A stream with more unsent bytes than this gets nothing more.",
        default_bytes=16 * _MIB,
        bounds_bytes=(64 * _KIB, _GIB),
    )
    request_max_bytes: int = size_setting(
        "limits.request.max.bytes",
        "The largest message that is accepted from a client; one with a checkpoint has 64 KiB.",
        default_bytes=4 * _MIB,
        bounds_bytes=(128 * _KIB, 256 * _MIB),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagementConfig:
    """Health and metrics."""

    enable: bool = bool_setting(
        "management.enable", "Whether health and metrics are served.", default=True
    )
    host: str = str_setting(
        "management.host",
        "Where they are served; 0.0.0.0 in a container, so that probes reach it.",
        default="localhost",
        check=_check_host,
    )
    port: int = int_setting(
        "management.port",
        "Port of the management server; 0 = any free one. While it is not set, any free one also "
        "when the default is taken; the start prints it.",
        default=7071,
        bounds=(0, 65_535),
    )
    tls_cert_file: str = str_setting(
        "management.tls.cert.file",
        "PEM file with the management server's certificate chain; empty = no TLS.",
    )
    tls_key_file: str = str_setting(
        "management.tls.key.file", "PEM file with that certificate's private key."
    )
    tls_client_ca_file: str = str_setting(
        "management.tls.client.ca.file",
        "PEM file with the authorities of those who may ask; when it is set, everybody must show "
        "a certificate, probes included.",
    )
    metrics_token_file: str = str_setting(
        "management.metrics.token.file",
        "File with the token that `/metrics` asks for (`Authorization: Bearer …`); empty = none. "
        "Probes need no token.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Logging of the process."""

    level: LogLevel = choice_setting(
        "log.level", "The least severe message that is logged.", default=LogLevel.INFO
    )
    format: LogFormat = choice_setting(
        "log.format",
        "`console` for people, `json` for machines, `auto` = console on a terminal, else json.",
        default=LogFormat.AUTO,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitConfig:
    """Group commit."""

    linger_ms: int = duration_setting(
        "commit.linger.ms",
        "How long changes that nobody waits for may wait for others, to be committed together, as "
        "with Kafka's `share.coordinator.append.linger.ms`. Deliveries never wait.",
        default_ms=5,
        bounds_ms=(0, 1_000),
    )
    oldest_uncommitted_ms: int = duration_setting(
        "commit.oldest.uncommitted.ms",
        "Acquiring stops while the oldest uncommitted change is older than this.",
        default_ms=500,
        bounds_ms=(10, _MINUTE_MS),
    )
    pending_max_bytes: int = size_setting(
        "commit.pending.max.bytes",
        "Acquiring stops while more bytes of changes than this wait for their commit.",
        default_bytes=16 * _MIB,
        bounds_bytes=(64 * _KIB, 16 * _GIB),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """After a start, a change of owner, or a time without commits."""

    lock_grace_ms: int = duration_setting(
        "recovery.lock.grace.ms",
        "How long locks that would have ended meanwhile stay valid, so that workers can come back.",
        default_ms=10_000,
        bounds_ms=(0, 10 * _MINUTE_MS),
    )
