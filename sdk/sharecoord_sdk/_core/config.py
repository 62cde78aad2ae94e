"""Reads the configuration dict of a consumer against the table of keys."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from .addresses import url_problem
from .config_table import CREATE_FAILED, SETTINGS, Setting, invalid
from .credentials import OidcConfig, SaslConfig
from .errors import KafkaError, KafkaException
from .tls_files import Pem, TlsConfig, TlsFiles, TlsFilesError, read_authorities

#: Port of a coordinator when an address names none.
DEFAULT_PORT: Final = 7070

_OAUTH: Final = "sasl.oauthbearer"
_ALIASES: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanism": "sasl.mechanisms",
    f"{_OAUTH}.client.credentials.client.id": f"{_OAUTH}.client.id",
    f"{_OAUTH}.client.credentials.client.secret": f"{_OAUTH}.client.secret",
}
_SCHEME = re.compile(r"^(plaintext|ssl|sasl_ssl|sasl_plaintext)://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """The checked configuration of a consumer. Times are seconds where a clock needs them."""

    addresses: tuple[str, ...]
    group_id: str
    client_id: str
    rack_id: str
    explicit: bool
    acquire_mode: str
    max_poll_records: int
    max_poll_given: bool
    max_poll_interval_ms: int
    close_timeout_s: float
    connect_timeout_s: float
    reconnect_backoff_s: float
    reconnect_backoff_max_s: float
    api_timeout_s: float
    buffer_records: int
    buffer_bytes: int
    record_batches: bool
    tls: TlsFiles | None
    sasl: SaslConfig | None
    error_cb: Callable[[KafkaError], Any] | None
    logger: logging.Logger


def read_config(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> ConsumerConfig:
    """Reads a constructor's arguments: one dict at the most, and keywords that are added to it.

    Raises:
        TypeError: Not a dict, or a callback that can not be called.
        ValueError: No group, or a key that share consumers do not have (as the twin).
        KafkaException: _INVALID_ARG: an unknown key or a value out of bounds, by name.
    """
    given = read_arguments(arguments, keywords)
    logger = given.get("logger")
    logger = logging.getLogger("sharecoord_sdk") if logger is None else logger
    if not hasattr(logger, "log"):
        raise AttributeError(f"{type(logger).__name__!r} object has no attribute 'log'")
    values: dict[str, Any] = {name: s.default for name, s in SETTINGS.items()}
    for name, value in given.items():
        setting = _find(name)
        read = setting.read(setting, value)
        if not setting.is_used:
            logger.debug("%s is accepted and has no effect: %s", name, setting.meaning)
        values[_ALIASES.get(setting.name, setting.name)] = read
    if "group.id" not in given:
        raise ValueError("Failed to create consumer: group.id must be set")
    if not values["group.id"]:
        raise ValueError(f"{CREATE_FAILED}group.id must not be empty")
    return _build(values, given, logger)


def read_arguments(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The dict of a constructor's arguments; TypeError when there is not exactly one."""
    if len(arguments) > 1:
        raise TypeError("expected tuple containing single dict")
    if arguments and not isinstance(arguments[0], dict):
        raise TypeError("expected configuration dict")
    if not arguments and not keywords:
        raise TypeError("expected configuration dict")
    return {**(arguments[0] if arguments else {}), **keywords}


def _find(name: object) -> Setting:
    if name == "on_commit":
        raise ValueError("on_commit is not supported on ShareConsumer")
    setting = SETTINGS.get(name) if isinstance(name, str) else None
    if setting is not None:
        return setting
    hint = ""
    if name in ("key.deserializer", "value.deserializer"):
        hint = ": use DeserializingShareConsumer"
    elif near := difflib.get_close_matches(str(name), SETTINGS, n=1):
        hint = f": did you mean {near[0]}?"
    text = f'No such configuration property: "{name}"{hint}'
    raise invalid(text)


def _build(
    values: dict[str, Any], given: Mapping[str, Any], logger: logging.Logger
) -> ConsumerConfig:
    return ConsumerConfig(
        addresses=read_addresses(values["bootstrap.servers"]),
        group_id=values["group.id"],
        client_id=values["client.id"] or "",
        rack_id=values["client.rack"] or "",
        explicit=values["share.acknowledgement.mode"] == "explicit",
        acquire_mode=values["share.acquire.mode"],
        max_poll_records=values["max.poll.records"],
        max_poll_given="max.poll.records" in given,
        max_poll_interval_ms=values["max.poll.interval.ms"],
        close_timeout_s=values["socket.timeout.ms"] / 1000,
        connect_timeout_s=values["socket.connection.setup.timeout.ms"] / 1000,
        reconnect_backoff_s=values["reconnect.backoff.ms"] / 1000,
        reconnect_backoff_max_s=values["reconnect.backoff.max.ms"] / 1000,
        api_timeout_s=values["default.api.timeout.ms"] / 1000,
        buffer_records=values["sharecoord.buffer.records"],
        buffer_bytes=values["sharecoord.buffer.bytes"],
        record_batches=values["sharecoord.record.batches"] == "auto",
        tls=_tls(values, logger),
        sasl=_sasl(values, logger),
        error_cb=cast("Callable[[KafkaError], Any] | None", values["error_cb"]),
        logger=logger,
    )


def read_addresses(text: str | None) -> tuple[str, ...]:
    """Reads `host:port[,host:port]` or `unix:/path`, in order, without doubles.

    Raises:
        KafkaException: _INVALID_ARG: an address that can not be one.
    """
    found = [_address(part.strip()) for part in (text or "").split(",") if part.strip()]
    if not found:
        text = 'Invalid value "" for configuration property "bootstrap.servers": host:port'
        raise invalid(text)
    return tuple(dict.fromkeys(found))


def is_unix(address: str) -> bool:
    """Whether an address is that of a Unix socket, which no other machine reads."""
    return address.startswith("unix:")


def _address(text: str) -> str:
    if is_unix(text):
        if len(text) > len("unix:"):
            return text
        raise _bad_address(text)
    bare = _SCHEME.sub("", text)
    host, colon, port = bare.rpartition(":")
    if not colon or bare.endswith("]"):
        host, port = bare, str(DEFAULT_PORT)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    is_host = host and not any(c.isspace() or c == "/" for c in host)
    if not is_host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise _bad_address(text)
    return f"{host}:{int(port)}"


def _bad_address(text: str) -> Exception:
    wanted = "host:port or unix:/path of a coordinator"
    return invalid(
        f'Invalid value "{text}" for configuration property "bootstrap.servers": {wanted}'
    )


def _tls(values: dict[str, Any], logger: logging.Logger) -> TlsFiles | None:
    if values["security.protocol"] not in ("ssl", "sasl_ssl"):
        return None
    ca, certificate, key = (_pem(values, f"ssl.{n}") for n in ("ca", "certificate", "key"))
    if bool(key) != bool(certificate):
        text = "ssl.certificate.* and ssl.key.* go together: give both or none"
        raise invalid(text)
    config = TlsConfig(ca, certificate, key, values["ssl.key.password"] or "")
    try:
        return TlsFiles(config, logger)
    except TlsFilesError as error:
        raise ValueError(f"{CREATE_FAILED}{error}") from None


def _pem(values: dict[str, Any], name: str) -> Pem:
    return Pem(values[f"{name}.location"], values[f"{name}.pem"])


def _sasl(values: dict[str, Any], logger: logging.Logger) -> SaslConfig | None:
    protocol = values["security.protocol"]
    if protocol not in ("sasl_ssl", "sasl_plaintext"):
        if values["oauth_cb"] is not None:
            text = "No SASL mechanism using callbacks is configured"
            raise KafkaException(KafkaError(KafkaError._NOT_CONFIGURED, text))
        return None
    addresses = read_addresses(values["bootstrap.servers"])
    if protocol == "sasl_plaintext" and not all(map(is_unix, addresses)):
        text = (
            "credentials go over TLS only, or to a coordinator's Unix socket: set"
            " security.protocol to sasl_ssl"
        )
        raise invalid(text)
    mechanism = str(values["sasl.mechanisms"]).upper()
    if mechanism not in ("PLAIN", "OAUTHBEARER"):
        fix = "use PLAIN or OAUTHBEARER"
        raise ValueError(f"{CREATE_FAILED}No provider for SASL mechanism {mechanism}: {fix}")
    if mechanism == "PLAIN":
        if not (values["sasl.username"] and values["sasl.password"]):
            raise ValueError(f"{CREATE_FAILED}sasl.username and sasl.password must be set")
        if ":" in values["sasl.username"]:
            raise ValueError(f"{CREATE_FAILED}sasl.username must not have a colon")
        return SaslConfig(mechanism, values["sasl.username"], values["sasl.password"])
    oidc = _oidc(values) if values[f"{_OAUTH}.method"] == "oidc" else None
    if oidc is None and values["oauth_cb"] is None:
        fix = "give oauth_cb, or set sasl.oauthbearer.method to oidc"
        raise ValueError(f"{CREATE_FAILED}OAUTHBEARER needs tokens: {fix}")
    if oidc is not None and values["oauth_cb"] is not None:
        logger.debug("oauth_cb is not called: sasl.oauthbearer.method=oidc gets the tokens")
    config = values[f"{_OAUTH}.config"] or ""
    return SaslConfig(mechanism, oauth_config=config, oauth_cb=values["oauth_cb"], oidc=oidc)


def _oidc(values: dict[str, Any]) -> OidcConfig:
    names = ("client.id", "client.secret", "token.endpoint.url")
    for name in names:
        if not values[f"{_OAUTH}.{name}"]:
            what = f"`{_OAUTH}.{name}` is mandatory when `{_OAUTH}.method=oidc` is set"
            raise ValueError(f"{CREATE_FAILED}{what}")
    client_id, secret, url = (values[f"{_OAUTH}.{name}"] for name in names)
    if problem := url_problem(url):
        raise invalid(f'Configuration property "{_OAUTH}.token.endpoint.url" {problem}')
    ca = _pem(values, "https.ca")
    if ca.path and ca.text:
        what = "`https.ca.location` and `https.ca.pem` are mutually exclusive"
        raise ValueError(f"{CREATE_FAILED}{what}")
    try:
        read_authorities("https.ca", ca)
    except TlsFilesError as error:
        raise ValueError(f"{CREATE_FAILED}{error}") from None
    return OidcConfig(url, client_id, secret, values[f"{_OAUTH}.scope"] or "", ca)
