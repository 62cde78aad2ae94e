"""Reads the configuration dict of a consumer against the table of keys."""

from __future__ import annotations

import base64
import difflib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from .config_table import CREATE_FAILED, SETTINGS, Setting, invalid
from .errors import KafkaError, KafkaException

#: Port of a coordinator when an address names none.
DEFAULT_PORT: Final = 7070

_ALIASES: Final = {"metadata.broker.list": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}
_SCHEME = re.compile(r"^(plaintext|ssl|sasl_ssl|sasl_plaintext)://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates or a key: a file, which each connection reads again, or their text."""

    path: str | None
    text: str | None

    def __bool__(self) -> bool:
        return bool(self.path or self.text)

    def read(self) -> bytes | None:
        if self.text:
            return self.text.encode("ascii")
        return Path(self.path).read_bytes() if self.path else None


@dataclass(frozen=True, slots=True)
class TlsConfig:
    ca: Pem
    certificate: Pem
    key: Pem


@dataclass(frozen=True, slots=True)
class SaslConfig:
    """Credentials that go with every call, over TLS only."""

    mechanism: str
    username: str
    password: str
    oauth_config: str
    oauth_cb: Callable[[str], Any] | None

    def metadata(self) -> list[tuple[str, str]]:
        """The credentials as metadata of a call. Calls `oauth_cb`, hence in the caller's thread."""
        if self.mechanism == "PLAIN":
            pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")
            return [("authorization", f"Basic {pair}")]
        assert self.oauth_cb is not None, "OAUTHBEARER was checked to have oauth_cb"
        return [("authorization", f"Bearer {self.oauth_cb(self.oauth_config)[0]}")]


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
    tls: TlsConfig | None
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
        tls=_tls(values),
        sasl=_sasl(values),
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


def _address(text: str) -> str:
    if text.startswith("unix:"):
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


def _tls(values: dict[str, Any]) -> TlsConfig | None:
    if values["security.protocol"] not in ("ssl", "sasl_ssl"):
        return None
    names = ("ca", "certificate", "key")
    tls = TlsConfig(*(Pem(values[f"ssl.{n}.location"], values[f"ssl.{n}.pem"]) for n in names))
    if bool(tls.key) != bool(tls.certificate):
        text = "ssl.certificate.* and ssl.key.* go together: give both or none"
        raise invalid(text)
    for name in names:
        _check_pem(f"ssl.{name}", getattr(tls, name))
    return tls


def _check_pem(name: str, pem: Pem) -> None:
    """Refuses a PEM file or text that can not be used now. Each connection reads the file again."""
    path, text = pem.path, pem.text
    name = f"{name}.pem" if text else f"{name}.location"
    try:
        content = text or (Path(path).read_text(encoding="ascii") if path else "")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no PEM file"
        raise ValueError(f"{CREATE_FAILED}{name} failed: {path!r}: {why}") from None
    if pem and "-----BEGIN " not in content:
        where = "" if text else f"{path!r}: "
        raise ValueError(
            f"{CREATE_FAILED}{name} failed: {where}no PEM: it has no line -----BEGIN …"
        )


def _sasl(values: dict[str, Any]) -> SaslConfig | None:
    protocol = values["security.protocol"]
    if protocol == "sasl_plaintext":
        text = "credentials go over TLS only: set security.protocol to sasl_ssl"
        raise invalid(text)
    mechanism = str(values["sasl.mechanisms"]).upper()
    if protocol != "sasl_ssl":
        if values["oauth_cb"] is not None:
            text = "No SASL mechanism using callbacks is configured"
            raise KafkaException(KafkaError(KafkaError._NOT_CONFIGURED, text))
        return None
    if mechanism not in ("PLAIN", "OAUTHBEARER"):
        fix = "use PLAIN or OAUTHBEARER"
        raise ValueError(f"{CREATE_FAILED}No provider for SASL mechanism {mechanism}: {fix}")
    if mechanism == "PLAIN" and not (values["sasl.username"] and values["sasl.password"]):
        raise ValueError(f"{CREATE_FAILED}sasl.username and sasl.password must be set")
    if mechanism == "OAUTHBEARER" and values["oauth_cb"] is None:
        raise ValueError(f"{CREATE_FAILED}OAUTHBEARER needs oauth_cb")
    return SaslConfig(
        mechanism,
        values["sasl.username"] or "",
        values["sasl.password"] or "",
        values["sasl.oauthbearer.config"] or "",
        values["oauth_cb"],
    )
