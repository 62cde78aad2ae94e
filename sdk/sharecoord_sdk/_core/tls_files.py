"""Certificates and keys of TLS: read, checked, and read again when their files change."""

from __future__ import annotations

import logging
import math
import re
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

#: The largest PEM file that is read: a bundle of all public CAs has 250 KB.
PEM_BYTES_MAX: Final = 4 << 20

#: Seconds between two looks at the files of a client that is connected.
LOOK_EVERY_S: Final = 5.0

_OPENSSL: Final = "openssl pkey -in OLD -out NEW"


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates or a key: a file, or their text."""

    path: str | None
    text: str | None = field(repr=False)

    def __bool__(self) -> bool:
        return bool(self.path or self.text)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The settings `ssl.*`."""

    ca: Pem
    certificate: Pem
    key: Pem
    key_password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What gRPC is given, as PEM. Connections of equal material may share a channel."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)


class TlsFilesError(ValueError):
    """A file or text of `ssl.*` can not be used; names the setting and the fix, never a key."""


class _Seen(NamedTuple):
    """What tells that a file is another one than at the last look; links are followed."""

    modified_ns: int
    size_bytes: int
    inode: int


class TlsFiles:
    """The material of TLS as it is now; files that can not be used leave the former one in force.

    Args:
        config: Where the material comes from.
        logger: Hears of changed files, and why they can not be used.

    Raises:
        TlsFilesError: A file or text can not be used.
    """

    def __init__(self, config: TlsConfig, logger: logging.Logger) -> None:
        self._config = config
        self._logger = logger
        # Threads share an admin client.
        self._lock = threading.Lock()
        # Why the files on disk are not in force; "" = they are.
        self._problem = ""
        self._seen = self._look()
        self._material = read_material(config)
        self._look_at = -math.inf

    def current(self) -> TlsMaterial:
        """The material for a connection that is made now. Looks at the files, and never raises."""
        with self._lock:
            seen = self._look()
            # A file that can not be used is tried at each look: the other one of two that belong
            # together may come later, and so may a mode that lets this process read.
            if seen != self._seen or self._problem:
                self._read_again()
                self._seen = seen
            return self._material

    def look(self, now: float) -> None:
        """Looks at the files, if that is long ago: what is wrong with them is told early.

        A version that is good is taken up though nothing connects, since the next may be broken.
        """
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self.current()

    def _read_again(self) -> None:
        try:
            material = read_material(self._config)
        except TlsFilesError as error:
            if str(error) != self._problem:
                text = "a changed file of TLS can not be used; the former one stays in use: %s"
                self._logger.log(logging.WARNING, text, error)
            self._problem = str(error)
            return
        self._problem = ""
        if material != self._material:
            self._material = material
            text = "changed files of TLS are in use from the next connection on"
            self._logger.log(logging.INFO, text)

    def _look(self) -> list[_Seen | None]:
        config = self._config
        return [_seen(pem.path) for pem in (config.ca, config.certificate, config.key) if pem.path]


def _seen(path: str) -> _Seen | None:
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return _Seen(stat.st_mtime_ns, stat.st_size, stat.st_ino)


def read_material(config: TlsConfig) -> TlsMaterial:
    """Reads and checks everything.

    Raises:
        TlsFilesError: A file can not be read, is no PEM, is broken, or key and certificate do not
            belong together.
    """
    ca = read_authorities("ssl.ca", config.ca)
    certificate = _read("ssl.certificate", config.certificate)
    key = _read("ssl.key", config.key)
    if key is not None:
        key = _without_password(_name("ssl.key", config.key), key, config.key_password)
    if config.certificate.path and config.key.path:
        _check_pair(config)
    return TlsMaterial(None if ca is None else ca.encode(), certificate, key)


def _name(setting: str, pem: Pem) -> str:
    """The setting, and the file that it names."""
    return f"{setting}.pem" if pem.text else f"{setting}.location {pem.path!r}"


def _read(setting: str, pem: Pem) -> bytes | None:
    name = _name(setting, pem)
    if pem.text:
        content = pem.text.encode(errors="replace")
    elif pem.path:
        try:
            with Path(pem.path).open("rb") as file:
                content = file.read(PEM_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise TlsFilesError(f"{name}: {why}") from None
    else:
        return None
    if len(content) > PEM_BYTES_MAX:
        raise TlsFilesError(f"{name}: more than {PEM_BYTES_MAX >> 20} MiB; is it the right file?")
    if b"-----BEGIN " not in content:
        raise TlsFilesError(f"{name}: no PEM: it has no line -----BEGIN …")
    return content


def read_authorities(setting: str, pem: Pem) -> str | None:
    """The certificates of CAs, of the setting `….location` or `….pem`, in ASCII; None = not given.

    Raises:
        TlsFilesError: As of `read_material`.
    """
    content = _read(setting, pem)
    if content is None:
        return None
    # Between its certificates a bundle has the names of their owners, in any letters.
    text = content.decode("ascii", errors="ignore")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        what = f"no certificates that can be read ({_why(error)})"
        raise TlsFilesError(f"{_name(setting, pem)}: {what}") from None
    return text


def _check_pair(config: TlsConfig) -> None:
    """Refuses a certificate and a key, both in files, that do not belong together."""
    certificate, key = config.certificate, config.key
    assert certificate.path is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        # Without a password OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate.path, key.path, config.key_password or "-")
    except (OSError, ValueError) as error:
        names = f"{_name('ssl.certificate', certificate)} and {_name('ssl.key', key)}"
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise TlsFilesError(f"{names}: the key is not the certificate's") from None
        raise TlsFilesError(f"{names}: they can not be read ({_why(error)})") from None


def _why(error: Exception) -> str:
    """OpenSSL's own words, without the place in its source."""
    said = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return re.sub(r" \(_ssl\.c:\d+\)", "", str(said))


def _without_password(name: str, content: bytes, password: str) -> bytes:
    """The key as gRPC takes it: gRPC reads no encrypted keys."""
    if b"ENCRYPTED" not in content:
        return content
    if not password:
        raise TlsFilesError(f"{name}: the key has a password: give it in ssl.key.password")
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        fix = f"or write the key without one: {_OPENSSL}"
        text = f"a key with a password needs cryptography: pip install 'sharecoord-sdk[tls]', {fix}"
        raise TlsFilesError(f"{name}: {text}") from None
    try:
        key: Any = serialization.load_pem_private_key(content, password.encode())
    except Exception:  # noqa: BLE001 - of many kinds; what they say is not for logs
        text = "ssl.key.password does not open the key, or the key is broken"
        raise TlsFilesError(f"{name}: {text}") from None
    plain: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return plain
