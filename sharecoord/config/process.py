"""The configuration of one coordinator process, merged from flags, environment, files, defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

from sharecoord.config.endpoints import (
    ALL_INTERFACES,
    StoreKind,
    UnixAddress,
    check_listen_security,
    default_store_url,
)
from sharecoord.config.group import GROUP_SETTINGS, resolve, validate_group_overrides
from sharecoord.config.kafka_keys import LIBRDKAFKA_KEYS, check_kafka_key
from sharecoord.config.kafka_properties import masked_kafka_value, read_kafka_config
from sharecoord.config.process_settings import (
    CommitConfig,
    CoordinatorConfig,
    EventsConfig,
    KafkaPortConfig,
    LimitsConfig,
    ListenConfig,
    LogConfig,
    ManagementConfig,
    MemoryConfig,
    Mode,
    ReaderConfig,
    RecoveryConfig,
    SecurityConfig,
    StoreConfig,
    TlsConfig,
)
from sharecoord.config.setting import SettingsTable, invalid_config, settings_of, unknown_name
from sharecoord.config.sources import Raw, Source, read_environment, read_yaml
from sharecoord.config.values import mask_url
from sharecoord.errors import InvalidConfigError

_KAFKA: Final = "kafka."
_GROUP: Final = "group."
_BOOTSTRAP: Final = "bootstrap.servers"
DEFAULT_BOOTSTRAP_SERVERS: Final = "localhost:9092"


class EffectiveRow(NamedTuple):
    """A line of `config show`."""

    key: str
    value: str
    """The value in force as text; secrets are masked."""
    source: Source
    place: str
    """`file.yaml:3`, the variable's name, or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """Typed effective settings of a process; made by `load`.

    Attributes:
        kafka: librdkafka's keys and values for every client of this process; never empty.
        group_defaults: The operator's settings for all groups, checked, in canonical text.
        origins: The raw value of each setting that somebody set, by its full name.
        warnings: Sentences about settings that were left out, or that others can see.
    """

    kafka: Mapping[str, str] = field(
        default_factory=lambda: {_BOOTSTRAP: DEFAULT_BOOTSTRAP_SERVERS}, repr=False
    )
    store: StoreConfig = field(default_factory=StoreConfig)
    listen: ListenConfig = field(default_factory=ListenConfig)
    kafka_port: KafkaPortConfig = field(default_factory=KafkaPortConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    coordinator: CoordinatorConfig = field(default_factory=CoordinatorConfig)
    events: EventsConfig = field(default_factory=EventsConfig)
    reader: ReaderConfig = field(default_factory=ReaderConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    management: ManagementConfig = field(default_factory=ManagementConfig)
    log: LogConfig = field(default_factory=LogConfig)
    commit: CommitConfig = field(default_factory=CommitConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    group_defaults: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, Raw] = field(default_factory=dict, repr=False)
    warnings: tuple[str, ...] = ()

    def source(self, name: str) -> Source:
        """Where the value of the setting with this full name comes from."""
        raw = self.origins.get(name)
        return raw.source if raw is not None else Source.DEFAULT

    @property
    def knows_clients(self) -> bool:
        """Whether certificates, tokens or OIDC tell who connects."""
        security = self.security
        return bool(self.tls.client_ca_file or security.tokens_file or security.oidc_issuer)

    def effective(self) -> tuple[EffectiveRow, ...]:
        """Every setting in force: the process's, Kafka's keys, and the defaults for all groups."""
        rows = [
            self._row(setting.name, setting.render(getattr(getattr(self, section), attribute)))
            for section, section_class in SECTIONS.items()
            for attribute, setting in settings_of(section_class).items()
        ]
        rows += [self._row(_KAFKA + key, self.kafka[key]) for key in sorted(self.kafka)]
        rows += [
            self._row(_GROUP + entry.name, entry.value)
            for entry in resolve({}, self.group_defaults).entries()
        ]
        return tuple(rows)

    def _row(self, name: str, value: str) -> EffectiveRow:
        raw = self.origins.get(name)
        if raw is not None and raw.written is not None:
            # What a reference brings is not shown, whatever the setting is.
            value = raw.written
        return EffectiveRow(name, shown(name, value), self.source(name), raw.place if raw else "")


SECTIONS: Final[dict[str, type]] = {
    name: kind
    for name, kind in get_type_hints(ProcessConfig).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}
"""Sections of the process settings by name, in the order of the documentation."""

PROCESS_SETTINGS: Final = SettingsTable(
    setting for section in SECTIONS.values() for setting in settings_of(section).values()
)


def shown(name: str, text: str) -> str:
    """The text of the setting with this full name, as it may be shown: secrets are masked."""
    if name in PROCESS_SETTINGS:
        return PROCESS_SETTINGS[name].show(text)
    return masked_kafka_value(name.removeprefix(_KAFKA), text)


def load(
    config_file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    kafka_config: Path | None = None,
) -> ProcessConfig:
    """Merges all sources: flags win over environment over Kafka's file over file over defaults.

    Args:
        config_file: YAML file, or None.
        environ: All environment variables.
        flags: Values by full setting name (`listen.address`, `kafka.bootstrap.servers`,
            `group.share.ordering`); None = the flag was not given.
        kafka_config: File of Kafka client keys, or None.

    Raises:
        InvalidConfigError: Anything unknown, malformed, out of bounds or contradictory; names the
            key, the place and the fix.
    """
    merged = read_yaml(config_file) if config_file is not None else {}
    warnings: tuple[str, ...] = ()
    if kafka_config is not None:
        properties = read_kafka_config(kafka_config)
        warnings = properties.warnings
        for key, value in properties.properties.items():
            place = f"{kafka_config}:{properties.lines[key]}"
            merged[_KAFKA + key] = Raw(value, Source.KAFKA_FILE, place)
    merged |= read_environment(environ, _known_names())
    merged |= {
        name: Raw(value, Source.FLAG, name) for name, value in flags.items() if value is not None
    }
    _refuse_unknown(merged)
    merged = {name: raw.resolved(name, environ) for name, raw in merged.items()}
    warnings += tuple(_seen_by_others(merged))
    kafka = _kafka_section(merged)
    sections = {name: _section(section, merged) for name, section in SECTIONS.items()}
    if "store.url" not in merged:
        url = default_store_url(environ)
        sections["store"] = dataclasses.replace(sections["store"], url=url)
    if "memory.cache.max.bytes" not in merged:
        # Nobody who lowers the limit should have to know its parts.
        memory: MemoryConfig = sections["memory"]
        fitting_bytes = min(memory.cache_max_bytes, memory.limit_bytes // 4)
        sections["memory"] = dataclasses.replace(memory, cache_max_bytes=fitting_bytes)
    config = ProcessConfig(
        **sections,
        kafka=kafka,
        group_defaults=_group_section(merged),
        origins=merged,
        warnings=warnings,
    )
    # Values that are legal alone may contradict each other.
    for check in (_check_tls, _check_security, _check_fleet, _check_kafka_port, _check_memory):
        check(config)
    return config


def _seen_by_others(merged: Mapping[str, Raw]) -> Iterator[str]:
    """A sentence for each secret that stands on the command line."""
    for name, raw in merged.items():
        text = raw.value if raw.written is None else raw.written
        if raw.source is Source.FLAG and isinstance(text, str) and shown(name, text) != text:
            yield (
                f"{name} is given on the command line with a secret in it, which every user of "
                "this machine can read there (ps). Write ${file:PATH} or ${env:NAME} in its "
                "place, or set it in --config or as a variable"
            )


def _known_names() -> list[str]:
    return [*PROCESS_SETTINGS, *(_GROUP + name for name in GROUP_SETTINGS)]


def _refuse_unknown(merged: Mapping[str, Raw]) -> None:
    known = _known_names()
    for name, raw in merged.items():
        if name not in known and not (name.startswith(_KAFKA) and len(name) > len(_KAFKA)):
            candidates = [*known, *(_KAFKA + key for key in LIBRDKAFKA_KEYS)]
            raise unknown_name(name, candidates, where=raw.where)


def _section(section_class: type, merged: Mapping[str, Raw]) -> Any:
    fields: dict[str, Any] = {}
    for attribute, setting in settings_of(section_class).items():
        raw = merged.get(setting.name)
        if raw is not None:
            fields[attribute] = setting.coerce(raw.value, where=raw.where, written=raw.written)
    return section_class(**fields)


def _plain_text(name: str, raw: Raw) -> str:
    """The text of a key under `kafka.` or `group.`; lists are joined as Kafka writes them."""
    if isinstance(raw.value, bool):
        return "true" if raw.value else "false"
    if isinstance(raw.value, (list, tuple)):
        return ",".join(str(item) for item in raw.value)
    if isinstance(raw.value, (str, int, float)):
        return str(raw.value)
    raise InvalidConfigError(
        f"{raw.where}: {name} must be a text or a number, not {type(raw.value).__name__}.",
        metadata={"key": name},
    )


def _kafka_section(merged: Mapping[str, Raw]) -> Mapping[str, str]:
    kafka = {_BOOTSTRAP: DEFAULT_BOOTSTRAP_SERVERS}
    for name, raw in merged.items():
        if name.startswith(_KAFKA) and name not in PROCESS_SETTINGS:
            key = name.removeprefix(_KAFKA)
            check_kafka_key(key, where=raw.where)
            kafka[key] = _plain_text(name, raw)
            _refuse_password_in_url(name, kafka[key], where=raw.where)
    # librdkafka's older name for the same list of brokers.
    if "metadata.broker.list" in kafka and _KAFKA + _BOOTSTRAP not in merged:
        del kafka[_BOOTSTRAP]
    elif not kafka[_BOOTSTRAP].strip():
        raw = merged[_KAFKA + _BOOTSTRAP]
        raise invalid_config(
            _KAFKA + _BOOTSTRAP,
            kafka[_BOOTSTRAP],
            "it must be HOST:PORT[,HOST:PORT…]",
            fix=f"The default is {DEFAULT_BOOTSTRAP_SERVERS}",
            where=raw.where,
        )
    return kafka


def _refuse_password_in_url(name: str, text: str, *, where: str) -> None:
    """Refuses what librdkafka would write into its log when the address does not answer."""
    if mask_url(text) != text:
        raise InvalidConfigError(
            f"{where}: {name} has a password in its URL, where librdkafka does not keep it secret. "
            "Remove it there; kafka.sasl.oauthbearer.client.id and .client.secret are for that",
            metadata={"key": name},
        )


def _group_section(merged: Mapping[str, Raw]) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for name, raw in merged.items():
        if name.startswith(_GROUP):
            setting = GROUP_SETTINGS.find(name.removeprefix(_GROUP), where=raw.where)
            text = _plain_text(name, raw)
            value = setting.parse(text, where=raw.where, written=raw.written)
            texts[setting.name] = setting.render(value)
    # Checked once more together: two good values may contradict each other.
    return validate_group_overrides(texts)


def _check_tls(config: ProcessConfig) -> None:
    tls = config.tls
    if bool(tls.cert_file) != bool(tls.key_file):
        given, missing = "tls.cert.file", "tls.key.file"
        if tls.key_file:
            given, missing = missing, given
        raise InvalidConfigError(f"{given} is set and {missing} is not. TLS needs both.")
    if tls.client_ca_file and not tls.cert_file:
        raise InvalidConfigError(
            "tls.client.ca.file is set without TLS. Set tls.cert.file and tls.key.file too."
        )


_OIDC: Final = ("security.oidc.issuer", "security.oidc.audience", "security.oidc.jwks")


def _check_security(config: ProcessConfig) -> None:
    security, management = config.security, config.management
    oidc = dict(
        zip(_OIDC, (security.oidc_issuer, security.oidc_audience, security.oidc_jwks), strict=True)
    )
    if any(oidc.values()) and not all(oidc.values()):
        given = next(name for name, value in oidc.items() if value)
        missing = next(name for name, value in oidc.items() if not value)
        raise InvalidConfigError(f"{given} is set and {missing} is not. Tokens of OIDC need both.")
    if bool(management.tls_cert_file) != bool(management.tls_key_file):
        raise InvalidConfigError(
            "Of management.tls.cert.file and management.tls.key.file one is set. TLS needs both."
        )
    if management.tls_client_ca_file and not management.tls_cert_file:
        raise InvalidConfigError(
            "management.tls.client.ca.file is set without TLS. Set management.tls.cert.file and "
            "management.tls.key.file too."
        )


def _check_fleet(config: ProcessConfig) -> None:
    coordinator, store = config.coordinator, config.store.url
    fleet = coordinator.mode is Mode.FLEET
    if fleet and not store.shared:
        name = "a SQLite file" if store.kind is StoreKind.SQLITE else "memory"
        raise InvalidConfigError(
            f"coordinator.mode=fleet cannot work on {name}: processes share the state through the "
            "database. Set store.url to postgresql://… or mysql://…, or the mode to standalone."
        )
    if coordinator.processes > 1 and not fleet:
        raise InvalidConfigError(
            f"coordinator.processes={coordinator.processes} is a fleet on one machine. Set "
            "coordinator.mode to fleet and store.url to postgresql://… or mysql://…."
        )
    if coordinator.processes > 1 and isinstance(config.listen.address, UnixAddress):
        raise InvalidConfigError(
            f"coordinator.processes={coordinator.processes} needs a TCP port to share. Set "
            "listen.address to HOST:PORT, or run one process on the socket."
        )
    if coordinator.lease_timeout_ms < 2 * coordinator.lease_renew_interval_ms:
        raise invalid_config(
            "coordinator.lease.timeout.ms",
            str(coordinator.lease_timeout_ms),
            "it must be at least twice coordinator.lease.renew.interval.ms, which is "
            f"{coordinator.lease_renew_interval_ms}",
            fix="Raise it, or renew more often",
        )


def _check_kafka_port(config: ProcessConfig) -> None:
    """Refuses what the Kafka port can not be."""
    kafka_port_openness(config)
    port = config.kafka_port
    if port.advertised and len(port.advertised) != len(port.listen):
        raise InvalidConfigError(
            f"kafka.port.advertised has {len(port.advertised)} addresses and kafka.port.listen has "
            f"{len(port.listen)}: give one for each, in the same order, or none"
        )
    for each in () if port.advertised else port.listen:
        if each.host in ALL_INTERFACES:
            raise InvalidConfigError(
                f"kafka.port.listen={each} is all interfaces, which members can not connect to. "
                "Set kafka.port.advertised to the name and port by which they reach this machine"
            )
    if port.passthrough:
        _check_passthrough(config)


def _check_passthrough(config: ProcessConfig) -> None:
    """Each broker has one port, which clients are told: there is room for one address."""
    port = config.kafka_port
    if len(port.listen) != 1:
        raise InvalidConfigError(
            f"kafka.port.passthrough=true goes with one address in kafka.port.listen, which has "
            f"{len(port.listen)}. Set one"
        )
    if config.coordinator.processes > 1:
        raise InvalidConfigError(
            "kafka.port.passthrough=true goes with coordinator.processes=1: the brokers' ports of "
            f"{config.coordinator.processes} processes would be the same. Run coordinators of "
            "their own, each with its kafka.port.listen"
        )
    if port.listen[0].port == 0 and port.passthrough_ports == 0:
        raise InvalidConfigError(
            "kafka.port.passthrough=true with port 0 in kafka.port.listen: clients keep addresses "
            "of brokers over a restart. Set a port, or kafka.port.passthrough.ports"
        )


def kafka_port_openness(config: ProcessConfig) -> str:
    """What is open at the Kafka port, as a sentence for a warning; "" = nothing is.

    Raises:
        InvalidConfigError: Something is, and the operator has not accepted it.
    """
    found = (
        check_listen_security(
            address,
            setting="kafka.port.listen",
            tls=config.tls.enabled,
            knows_clients=config.knows_clients,
            insecure=config.listen.insecure,
        )
        for address in config.kafka_port.listen
    )
    return " ".join(filter(None, found))


def _check_memory(config: ProcessConfig) -> None:
    memory = config.memory
    if memory.read_stop_ratio > memory.acquire_stop_ratio:
        raise invalid_config(
            "memory.read.stop.ratio",
            str(memory.read_stop_ratio),
            f"it must not exceed memory.acquire.stop.ratio, which is {memory.acquire_stop_ratio}",
            fix="Reading must stop before acquiring does",
        )
    parts = {
        "memory.cache.max.bytes": memory.cache_max_bytes,
        "commit.pending.max.bytes": config.commit.pending_max_bytes,
    }
    for name, size_bytes in parts.items():
        if size_bytes >= memory.limit_bytes:
            raise invalid_config(
                name,
                str(size_bytes),
                f"it must be smaller than memory.limit, which is {memory.limit_bytes}",
                fix="Lower it or raise the limit",
            )
