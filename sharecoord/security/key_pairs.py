"""What a server shows to those who connect: a certificate with its key, checked before it is used.

The files are watched (`files.WatchedFiles`): a new pair is shown to whoever connects after it came,
a pair that can not be used leaves the one before in force.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from sharecoord.config.process_settings import ManagementConfig, TlsConfig
from sharecoord.errors import InvalidConfigError
from sharecoord.security.files import WatchedFiles

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

log = structlog.get_logger(__name__)

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A server's certificate and key, and whose certificates its clients have; all as PEM."""

    chain: bytes
    """The certificate, then those between it and its authority."""
    key: bytes
    client_authorities: bytes
    """Of clients' certificates; empty = clients show none."""
    ends_s: Mapping[str, float]
    """By setting: when the first certificate of the file ends, in seconds since 1970."""
    context: ssl.SSLContext | None = None
    """The TLS context of Python that shows it, where somebody asked for one."""

    def __repr__(self) -> str:
        """Without the key."""
        return f"KeyPair(ends_s={dict(self.ends_s)})"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A key pair, and the TLS context of Python that shows it."""

    pair: KeyPair
    context: ssl.SSLContext

    @property
    def ends_s(self) -> Mapping[str, float]:
        """As those of the pair."""
        return self.pair.ends_s


def listener_pair(tls: TlsConfig, *, has_context: bool = False) -> WatchedFiles[KeyPair] | None:
    """The key pair of the listeners of `tls.*`; None = they speak clear text.

    Args:
        tls: The settings.
        has_context: Whether one of the listeners is Python's own, and needs a context.

    Raises:
        InvalidConfigError: A file can not be read or used, or the key is not the certificate's.
    """
    if not tls.enabled:
        return None
    files = tls.cert_file, tls.key_file, tls.client_ca_file
    paths, read = _files_of("tls", *files)
    if not has_context:
        return WatchedFiles(paths, read)
    return WatchedFiles(
        paths, lambda contents: replace(read(contents), context=_context("tls", *files))
    )


def management_tls(management: ManagementConfig) -> WatchedFiles[ServerTls] | None:
    """The TLS of the management port; None = it speaks clear text.

    Raises:
        InvalidConfigError: As `listener_pair`.
    """
    certificate, key = management.tls_cert_file, management.tls_key_file
    if not certificate:
        return None
    authorities = management.tls_client_ca_file
    paths, read = _files_of("management.tls", certificate, key, authorities)

    def read_context(contents: Mapping[str, bytes]) -> ServerTls:
        pair = read(contents)
        # Python takes keys from files alone: should they have changed since they were read, the
        # next look reads them again.
        return ServerTls(pair, _context("management.tls", certificate, key, authorities))

    return WatchedFiles(paths, read_context)


def _files_of(
    section: str, certificate: str, key: str, authorities: str
) -> tuple[dict[str, str], Callable[[Mapping[str, bytes]], KeyPair]]:
    """The files of a section of the settings, by setting, and what makes a key pair of them."""
    names = f"{section}.cert.file", f"{section}.key.file", f"{section}.client.ca.file"
    paths = dict(zip(names, (certificate, key, authorities), strict=True))
    if not authorities:
        del paths[names[2]]

    def read(contents: Mapping[str, bytes]) -> KeyPair:
        return _key_pair(contents, *names)

    return paths, read


def _key_pair(contents: Mapping[str, bytes], chain: str, key: str, authorities: str) -> KeyPair:
    """The key pair in the contents of files; the other arguments are the names of the settings."""
    certificates = certificates_in(chain, contents[chain])
    _check_key(contents[key], certificates[0], chain, key)
    ends_s = {chain: first_end_s(certificates)}
    if authorities in contents:
        ends_s[authorities] = first_end_s(certificates_in(authorities, contents[authorities]))
    now_s = time.time()
    for setting, end_s in ends_s.items():
        if end_s <= now_s:
            # No refusal: the clock of this machine may be the one that is wrong.
            log.warning("a certificate has ended, and is refused by others", setting=setting)
    return KeyPair(contents[chain], contents[key], contents.get(authorities, b""), ends_s)


def certificates_in(setting: str, pem: bytes) -> list[Certificate]:
    """The certificates in the file of a setting, at least one.

    Raises:
        InvalidConfigError: There is none, or one is damaged.
    """
    # Loaded with the first certificate: who uses none need not wait for the library.
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidConfigError(
            f"{setting}: no certificate can be read in the file ({_why(error)}). It must be PEM: "
            "-----BEGIN CERTIFICATE-----"
        ) from error


def first_end_s(certificates: list[Certificate]) -> float:
    """When the first of some certificates ends, in seconds since 1970."""
    return min(each.not_valid_after_utc.timestamp() for each in certificates)


def days_left(ends_s: Mapping[str, float]) -> dict[str, float]:
    """Days until certificates end, by setting; below 0 once they have."""
    now_s = time.time()
    return {setting: (end_s - now_s) / DAY_S for setting, end_s in ends_s.items()}


def _check_key(pem: bytes, certificate: Certificate, chain: str, key: str) -> None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found: Any = load_pem_private_key(pem, password=None)
        belongs = found.public_key() == certificate.public_key()
    except TypeError as error:
        raise InvalidConfigError(
            f"{key}: the key is encrypted, and nobody is there to type its password. Store it "
            "without (openssl pkey -in KEY -out KEY.clear), readable by this process alone"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidConfigError(
            f"{key}: no private key can be read in the file ({_why(error)}). It must be PEM: "
            "-----BEGIN PRIVATE KEY-----"
        ) from error
    if not belongs:
        raise InvalidConfigError(
            f"{key}: this is not the key of the first certificate in {chain}; write both files, "
            "and in the other the server's own certificate before those of authorities"
        )


def _why(error: Exception) -> str:
    """The first sentence of an error of the library; the rest is about its source code."""
    return str(error).partition(". ")[0][:100] or type(error).__name__


# -- contexts of Python's ssl module --------------------------------------------------------------


def _context(section: str, certificate: str, key: str, authorities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")
        if authorities:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authorities)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidConfigError(
            f"{section}.*: OpenSSL can not use the certificate and key: {reason}"
        ) from error
    return context


class PresentContext(ssl.SSLContext):
    """Gives each new connection of asyncio the context of the files as they are now.

    A context of its own for each state of the files: with it go the authorities of clients that are
    trusted no more, and the sessions that their clients could resume.
    """

    def __new__(cls, files: WatchedFiles[ServerTls]) -> PresentContext:
        """A context that is asked for connections, and has no certificate itself."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: WatchedFiles[ServerTls]) -> None:
        """Takes the watched files."""
        self._files = files

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """See `ssl.SSLContext.wrap_bio`; asyncio calls it for each connection."""
        return self._files.value.context.wrap_bio(*args, **kwargs)
