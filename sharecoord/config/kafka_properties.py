"""Reads `--kafka-config FILE`: librdkafka's own format or a Java client.properties.

A Java file is translated to librdkafka's keys, so that the file that a Kafka tool takes works
here too:

* `sasl.jaas.config` of PLAIN and SCRAM becomes `sasl.username` and `sasl.password`;
* PEM truststores and keystores become `ssl.ca.*`, `ssl.certificate.*` and `ssl.key.*`;
* a JKS truststore or keystore, or a PKCS#12 truststore, is refused with the command that converts
  it (librdkafka reads a PKCS#12 keystore itself);
* keys that only mean something to a Java program are left out and reported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sharecoord.config.java_properties import (
    JaasEntry,
    PropertiesSyntaxError,
    Property,
    parse_jaas_config,
    parse_java_properties,
    parse_plain_properties,
)
from sharecoord.config.kafka_keys import check_kafka_key, is_secret_kafka_key
from sharecoord.config.references import is_reference, resolve
from sharecoord.config.setting import MASK
from sharecoord.errors import InvalidConfigError

# Only these make sense in a program that runs in a Java virtual machine, or steer a part of the
# Java client that has no counterpart; leaving them out changes nothing about which cluster is
# reached, as whom, or what is read.
_JAVA_ONLY_NAMES: Final = """
    auto.include.jmx.reporter buffer.memory compression.gzip.level compression.lz4.level
    compression.zstd.level default.api.timeout.ms exclude.internal.topics
    fetch.max.wait.ms interceptor.classes internal.leave.group.on.close
    internal.throw.on.fetch.stable.offset.unsupported key.deserializer key.serializer max.block.ms
    max.poll.records max.request.size metadata.max.idle.ms metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms partitioner.adaptive.partitioning.enable
    partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys
    receive.buffer.bytes sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.connect.timeout.ms
    sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    send.buffer.bytes share.acknowledgement.mode share.acquire.mode
    socket.connection.setup.timeout.max.ms ssl.enabled.protocols ssl.keymanager.algorithm
    ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    transaction.two.phase.commit.enable value.deserializer value.serializer
"""
_LEFT_OUT: Final = {
    **dict.fromkeys(_JAVA_ONLY_NAMES.split(), "it has no effect outside Java clients"),
    "ssl.truststore.type": None,
    "ssl.truststore.password": "a PEM file with certificates has no password",
    "ssl.keystore.type": None,
}
"""Keys that are left out, with the reason that a warning gives; None = without a warning."""
_RENAMED: Final = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
# Refused: leaving these out would change who the client is or whom it trusts.
_JAVA_CLASSES: Final = {
    "config.providers": (
        "remove it; ${file:PATH}, a file with the value alone, and ${env:NAME} need no provider"
    ),
    "sasl.client.callback.handler.class": "use a mechanism that librdkafka has",
    "sasl.login.callback.handler.class": "use librdkafka's sasl.oauthbearer.method=oidc",
    "sasl.login.class": "use a mechanism that librdkafka has",
    "security.providers": "use PEM files with ssl.ca.location, ssl.certificate.location",
    "ssl.engine.factory.class": "use PEM files with ssl.ca.location, ssl.certificate.location",
}
_KEY: Final = re.compile(r"[a-z0-9._-]+", re.ASCII)
_JAVA_MARKS: Final = ("sasl.jaas.config", "ssl.truststore.", "ssl.keystore.type")
_PLAIN_SUFFIXES: Final = frozenset({".conf", ".cfg", ".config", ".librdkafka"})
_SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class KafkaProperties:
    """A file's keys for the connection to Kafka."""

    properties: Mapping[str, str] = field(repr=False)
    """librdkafka's keys and values."""
    lines: Mapping[str, int]
    """Line of the file that each key came from, from 1."""
    warnings: tuple[str, ...]
    """A sentence for each key that was left out."""


def read_kafka_config(path: Path, environ: Mapping[str, str] | None = None) -> KafkaProperties:
    """Reads a file of Kafka client keys.

    A file named `*.properties`, or one with keys of the Java client, is read by Java's rules
    (escapes, continued lines), any other by librdkafka's (none). The file is UTF-8, or Latin-1, as
    Java wrote it for long.

    Args:
        path: The file.
        environ: All environment variables, for references in values; None = references stay as
            they were written.

    Raises:
        InvalidConfigError: Unreadable, malformed, a duplicate or a key that must not be set; names
            file and line.
    """
    text = _read_text(path)
    try:
        entries = _parse(path, text)
    except PropertiesSyntaxError as error:
        raise InvalidConfigError(f"{path}:{error.line}: {error}.") from None
    _refuse_duplicates(path, entries)
    found = _Translation(path, entries).run()
    if environ is None:
        return found
    resolved = {
        key: resolve(value, environ, name=key, where=f"{path}:{found.lines[key]}")
        for key, value in found.properties.items()
    }
    return replace(found, properties=resolved)


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(
            f'cannot read the Kafka configuration "{path}": {error.strerror or error}. '
            "Check --kafka-config."
        ) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _parse(path: Path, text: str) -> list[Property]:
    plain_keys = (line.partition("=")[0].strip() for line in text.splitlines())
    entries = _entries(path, text, java=any(map(_is_java_mark, plain_keys)))
    for entry in entries:
        if not _KEY.fullmatch(entry.key):
            # Not quoted: the rest of a private key that goes over several lines looks like that.
            raise PropertiesSyntaxError(
                entry.line,
                "no key of Kafka's stands at the begin of this line. A value of several lines "
                "needs a backslash at the end of each line but the last, in a file named "
                "*.properties",
            )
    return entries


def _entries(path: Path, text: str, *, java: bool) -> list[Property]:
    if path.suffix.lower() == ".properties" or java:
        entries = parse_java_properties(text)
        return [entry._replace(value=entry.value.strip()) for entry in entries]
    entries = parse_plain_properties(text)
    for entry in entries:
        # An escape that is read wrongly would become a wrong password, which nobody sees.
        if "\\" in entry.value and path.suffix.lower() not in _PLAIN_SUFFIXES:
            raise PropertiesSyntaxError(
                entry.line,
                f'"{entry.key}" has a backslash: name the file *.properties if it is an escape of '
                "Java's format, or *.conf if it belongs to the value",
            )
    return entries


def _is_java_mark(key: str) -> bool:
    return key.startswith(_JAVA_MARKS) or key.endswith((".deserializer", ".serializer"))


def _refuse_duplicates(path: Path, entries: list[Property]) -> None:
    seen: dict[str, int] = {}
    for entry in entries:
        if entry.key in seen:
            raise InvalidConfigError(
                f'{path}:{entry.line}: "{entry.key}" is already set in line {seen[entry.key]}. '
                "Keep one of them."
            )
        seen[entry.key] = entry.line


class _Translation:
    """Turns the entries of one file into librdkafka's keys, step by step."""

    def __init__(self, path: Path, entries: list[Property]) -> None:
        self._path = path
        self._lines = {entry.key: entry.line for entry in entries}
        self._left = {entry.key: entry.value for entry in entries}
        self._out: dict[str, str] = {}
        self._out_lines: dict[str, int] = {}
        self._warnings: list[str] = []

    def run(self) -> KafkaProperties:
        """Translates everything; refuses what cannot be translated, with file and line."""
        for key in self._left:
            check_kafka_key(key, where=self._where(key))
            if key in _JAVA_CLASSES:
                raise self._error(key, f"needs a Java program: {_JAVA_CLASSES[key]}")
        self._translate_jaas()
        self._refuse_java_stores()
        self._translate_pem_keystore()
        # Java says "do not check the host name" with an empty text, librdkafka with "none".
        if self._left.get("ssl.endpoint.identification.algorithm") == "":
            self._left["ssl.endpoint.identification.algorithm"] = "none"
        for key in list(self._left):
            if key in _LEFT_OUT:
                self._drop(key, _LEFT_OUT[key])
            else:
                self._move(key, _RENAMED.get(key, key))
        return KafkaProperties(self._out, self._out_lines, tuple(self._warnings))

    def _translate_jaas(self) -> None:
        key = "sasl.jaas.config"
        if key not in self._left:
            return
        for rival in ("sasl.username", "sasl.password"):
            if rival in self._left:
                raise self._error(key, f"and {rival} are both set. Keep one of them")
        try:
            entry = parse_jaas_config(self._left[key])
        except ValueError as error:
            raise self._error(key, f"cannot be read: {error}") from None
        self._check_mechanism(key, entry)
        for option, target in (("username", "sasl.username"), ("password", "sasl.password")):
            if not entry.options.get(option):
                raise self._error(key, f'has no {option}="…"')
            self._out[target] = entry.options[option]
            self._out_lines[target] = self._lines[key]
        del self._left[key]

    def _check_mechanism(self, key: str, entry: JaasEntry) -> None:
        mechanism = (
            self._left.get("sasl.mechanism") or self._left.get("sasl.mechanisms") or ""
        ).upper()
        if entry.login_module == "PlainLoginModule":
            allowed: tuple[str, ...] = ("PLAIN",)
        elif entry.login_module == "ScramLoginModule":
            allowed = _SCRAM_MECHANISMS
        else:
            raise self._error(
                key,
                f"has the login module {entry.login_module}; only PlainLoginModule and "
                "ScramLoginModule are translated. For others set librdkafka's own keys "
                "(sasl.kerberos.*, sasl.oauthbearer.*)",
            )
        if mechanism not in allowed:
            raise self._error(
                key,
                f'has the login module {entry.login_module}, but sasl.mechanism is "{mechanism}". '
                f"Set sasl.mechanism={' or '.join(allowed)}",
            )
        if entry.options.get("tokenauth", "").lower() == "true":
            raise self._error(key, "has tokenauth=true: librdkafka has no delegation tokens")

    def _refuse_java_stores(self) -> None:
        """Refuses the stores that librdkafka cannot read: one error, with all commands."""
        commands: list[str] = []
        remedies: list[str] = []
        culprit = ""
        if "ssl.truststore.location" in self._left and self._type("truststore") != "PEM":
            culprit = "ssl.truststore.location"
            commands.append(_truststore_command(self._left[culprit], self._type("truststore")))
            remedies.append("ssl.ca.location=ca.pem")
        if "ssl.keystore.location" in self._left and self._type("keystore") == "JKS":
            culprit = culprit or "ssl.keystore.location"
            store = shlex.quote(self._left["ssl.keystore.location"])
            into = "-destkeystore client.p12 -deststoretype PKCS12"
            commands.append(f"keytool -importkeystore -srckeystore {store} {into}")
            remedies.append("ssl.keystore.location=client.p12 with ssl.keystore.type=PKCS12")
        if commands:
            raise self._error(
                culprit,
                "is a Java store, which librdkafka cannot read. Convert it once:\n  "
                + "\n  ".join(commands)
                + f"\nand write {' and '.join(remedies)} instead of the Java keys",
            )

    def _type(self, store: str) -> str:
        """The declared type of a store, else what its file name says, else Java's default."""
        declared = self._left.get(f"ssl.{store}.type", "").upper()
        if declared:
            return declared
        location = self._left.get(f"ssl.{store}.location", "").lower()
        if location.endswith((".p12", ".pfx", ".pkcs12")):
            return "PKCS12"
        # Without a type the file is not Java's but librdkafka's own, whose keystore is PKCS#12.
        java = any(_is_java_mark(key) for key in self._lines)
        java = java or self._path.suffix.lower() == ".properties"
        return "JKS" if java or location.endswith(".jks") else "PKCS12"

    def _translate_pem_keystore(self) -> None:
        """Java's PEM keystore holds key and chain in one file, librdkafka's are two."""
        location = self._left.get("ssl.keystore.location")
        if location is not None and self._type("keystore") == "PEM":
            self._out["ssl.key.location"] = location
            self._out_lines["ssl.key.location"] = self._lines["ssl.keystore.location"]
            self._move("ssl.keystore.location", "ssl.certificate.location")
            self._drop("ssl.keystore.password", "ssl.key.password protects a PEM key")

    def _move(self, key: str, target: str) -> None:
        if target in self._out or (target != key and target in self._left):
            raise self._error(key, f"and {target} are both set. Keep one of them")
        self._out[target] = self._left.pop(key)
        self._out_lines[target] = self._lines[key]

    def _drop(self, key: str, reason: str | None) -> None:
        """Leaves a key out, with a warning if there is a reason."""
        if self._left.pop(key, None) is not None and reason is not None:
            self._warnings.append(f"{self._where(key)}: {key} is left out: {reason}.")

    def _where(self, key: str) -> str:
        return f"{self._path}:{self._lines[key]}"

    def _error(self, key: str, problem: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"{self._where(key)}: {key} {problem}.", metadata={"key": f"kafka.{key}"}
        )


def _truststore_command(location: str, store_type: str) -> str:
    """The command that writes every certificate of a truststore to ca.pem."""
    path = shlex.quote(location)
    if store_type == "PKCS12":
        return f"openssl pkcs12 -in {path} -nokeys -out ca.pem"
    return f"keytool -list -rfc -keystore {path} > ca.pem"


def masked_kafka_value(key: str, value: str) -> str:
    """The value as it may be shown; a reference says where a secret is, not what it is."""
    secret = value and is_secret_kafka_key(key) and not is_reference(value)
    return MASK if secret else value
