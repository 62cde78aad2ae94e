"""How to be let in by a broker: TLS and SASL, by librdkafka's names of settings.

librdkafka has more ways than are here. `beyond` names the setting that needs it; then it reads.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from scramp import ScramClient, ScramException

from sharecoord.errors import InvalidConfigError, UnauthenticatedError

_SASL: Final = frozenset({"sasl_plaintext", "sasl_ssl"})
_TLS: Final = frozenset({"ssl", "sasl_ssl"})
_PROTOCOLS: Final = frozenset({"plaintext"}) | _SASL | _TLS

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = ("PLAIN", *SCRAM, "OAUTHBEARER")

_BEYOND: Final = (
    *("ssl.keystore.location", "ssl.crl.location", "ssl.curves.list", "ssl.sigalgs.list"),
    *("ssl.engine.id", "ssl.engine.location", "ssl.providers", "ssl.ca.certificate.stores"),
)
"""Settings of librdkafka that Python's ssl has nothing for."""

Settings = Mapping[str, str | int | float | bool]


class SaslExchange(Protocol):
    """One authentication: what to send next, and what to make of the answer."""

    def first(self) -> bytes:
        """The client's first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """The next message; None = done."""


@dataclass(frozen=True, slots=True)
class Security:
    """How connections to the cluster's brokers are made."""

    tls: ssl.SSLContext | None
    checks_names: bool
    mechanism: str | None
    exchange: Callable[[], SaslExchange] | None


def beyond(settings: Settings) -> str | None:
    """What among the settings only librdkafka can do; None = nothing."""
    for key in _BEYOND:
        if settings.get(key):
            return key
    mechanism = _mechanism(settings)
    if _protocol(settings) in _SASL and mechanism not in MECHANISMS:
        return f"sasl.mechanism={mechanism}"
    return None


def security_of(settings: Settings, token: Callable[[], str] | None = None) -> Security:
    """The way in that the settings describe; `token` gives a token of OAUTHBEARER.

    Raises:
        InvalidConfigError: A file can not be read, or a value is missing.
    """
    protocol = _protocol(settings)
    tls = _tls_context(settings) if protocol in _TLS else None
    checks = str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower() == "https"
    if protocol not in _SASL:
        return Security(tls, checks, None, None)
    mechanism = _mechanism(settings)
    return Security(tls, checks, mechanism, _exchange(settings, mechanism, token))


def _protocol(settings: Settings) -> str:
    found = str(settings.get("security.protocol", "plaintext")).lower()
    if found not in _PROTOCOLS:
        known = ", ".join(sorted(_PROTOCOLS))
        raise InvalidConfigError(f"kafka.security.protocol is {found!r}; it is one of {known}")
    return found


def _mechanism(settings: Settings) -> str:
    return str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "GSSAPI")


def _exchange(
    settings: Settings, mechanism: str, token: Callable[[], str] | None
) -> Callable[[], SaslExchange]:
    if mechanism == "OAUTHBEARER":
        assert token is not None, "the caller has a source of tokens"
        extensions = str(settings.get("sasl.oauthbearer.extensions", ""))
        return lambda: _OAuthBearer(token(), extensions)
    user = _text(settings, "sasl.username", "username")
    password = _text(settings, "sasl.password")
    if mechanism == "PLAIN":
        return lambda: _Plain(user, password)
    return lambda: _Scram(mechanism, user, password)


def _text(settings: Settings, *keys: str) -> str:
    for key in keys:
        if key in settings:
            return str(settings[key])
    raise InvalidConfigError(f"kafka.{keys[0]} is not set; kafka.sasl.mechanism needs it")


def _tls_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    checks = str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower()
    context.check_hostname = checks == "https"
    if str(settings.get("enable.ssl.certificate.verification", True)).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _load_authorities(context, settings)
        _load_certificate(context, settings)
        if ciphers := settings.get("ssl.cipher.suites"):
            context.set_ciphers(str(ciphers))
    except (OSError, ssl.SSLError, ValueError) as error:
        raise InvalidConfigError(f"kafka.ssl.*: {error}") from error
    return context


def _load_authorities(context: ssl.SSLContext, settings: Settings) -> None:
    if pem := settings.get("ssl.ca.pem"):
        context.load_verify_locations(cadata=str(pem))
    elif location := settings.get("ssl.ca.location"):
        if location == "probe":
            context.load_default_certs()
            return
        try:
            context.load_verify_locations(cafile=str(location))
        except IsADirectoryError:
            context.load_verify_locations(capath=str(location))
    else:
        context.load_default_certs()


def _load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    certificate = settings.get("ssl.certificate.pem")
    key = settings.get("ssl.key.pem")
    location = settings.get("ssl.certificate.location")
    password = settings.get("ssl.key.password")
    if not certificate and not location:
        return
    with tempfile.TemporaryDirectory(prefix="sharecoord-") as folder:
        # Python reads a certificate from files alone; the folder is ours, and gone in a moment.
        paths: list[str] = []
        for name, pem, place in (
            ("certificate", certificate, location),
            ("key", key, settings.get("ssl.key.location")),
        ):
            if pem:
                path = f"{folder}/{name}.pem"
                with open(path, "w", encoding="ascii") as file:
                    file.write(str(pem))
                paths.append(path)
            elif place:
                paths.append(str(place))
        context.load_cert_chain(*paths, password=None if password is None else str(password))


class _Plain:
    """RFC 4616."""

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class _Scram:
    """RFC 5802 and 7677; the server proves that it knows the password, too."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        # Names are escaped by Kafka's rule, which is the RFC's; scramp leaves it to its caller.
        escaped = user.replace("=", "=3D").replace(",", "=2C")
        self._client = ScramClient([mechanism], escaped, password)
        self._step = 0

    def first(self) -> bytes:
        return bytes(self._client.get_client_first().encode())

    def answer(self, challenge: bytes) -> bytes | None:
        self._step += 1
        try:
            if self._step == 1:
                self._client.set_server_first(challenge.decode())
                return bytes(self._client.get_client_final().encode())
            self._client.set_server_final(challenge.decode())
        except ScramException as error:
            raise UnauthenticatedError(f"SCRAM failed: {error}") from error
        return None


class _OAuthBearer:
    """RFC 7628, as KIP-255 has it."""

    def __init__(self, token: str, extensions: str) -> None:
        pairs = [pair.strip() for pair in extensions.split(",") if pair.strip()]
        extra = "".join(f"\x01{pair}" for pair in pairs)
        self._message = f"n,,\x01auth=Bearer {token}{extra}\x01\x01".encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        # A refusal comes as a JSON text; the broker wants one byte before it says so itself.
        return b"\x01" if challenge else None
