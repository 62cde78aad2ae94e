"""TLS by librdkafka's names of settings; certificates are read again when their files change."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog

from sharecoord.errors import InvalidConfigError
from sharecoord.kafka.wire.held_files import FILES, contents_of
from sharecoord.kafka.wire.keys import Settings, flag
from sharecoord.security.key_pairs import certificates_in, first_end_s

log = structlog.get_logger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file: time, size and number; None = it is not there."""


class Tls:
    """The TLS context of the settings, which is made again when a file of it has changed.

    A change that can not be read (a certificate without its new key yet) changes nothing, and is
    logged once.
    """

    def __init__(self, settings: Settings) -> None:
        """Reads the files.

        Raises:
            InvalidConfigError: One can not be read, or two do not belong together.
        """
        self._settings = settings
        self._stamp = self._refused = self._stamps()
        self._context = self._told = _context(settings)
        self.contents = contents_of(settings)
        """Of the files in force, by librdkafka's keys; for clients that read files themselves."""
        self.ends_s = _ends_s(settings)
        """By setting: when the certificate that brokers are shown ends, in seconds since 1970."""
        self.problem = ""
        """Why the files on disk are not in force; "" = they are."""

    @property
    def settings(self) -> str:
        """The names of the settings of its files, for people."""
        return ", ".join(f"kafka.{key}" for key in FILES if self._settings.get(key))

    def context(self) -> ssl.SSLContext:
        """For the next connection: of the files as they are now."""
        self._read_changes()
        return self._context

    def look(self) -> bool:
        """Reads the files again if they have changed; returns whether they did since the last look.

        A connection may have been the first to see the change.
        """
        self._read_changes()
        before, self._told = self._told, self._context
        return before is not self._told

    def _read_changes(self) -> None:
        stamp = self._stamps()
        if stamp == self._stamp:
            self.problem = ""
        if stamp in (self._stamp, self._refused):
            return
        try:
            context, contents = _context(self._settings), contents_of(self._settings)
        except InvalidConfigError as error:
            self._refused, self.problem = stamp, error.message
            log.warning("kafka certificates changed, the old ones stay", why=error.message)
            return
        if self._stamps() != stamp:
            # A file changed in between: the context may be of other contents. Next time.
            return
        self._context, self.contents = context, contents
        self.ends_s = _ends_s(self._settings)
        self._stamp, self.problem = stamp, ""
        log.info("kafka certificates read again")

    def _stamps(self) -> _Stamp:
        return tuple(_stamp(str(self._settings.get(key) or "")) for key in FILES)


def _stamp(place: str) -> tuple[int, int, int] | None:
    try:
        found = Path(place).stat() if place else None
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size, found.st_ino)


def _ends_s(settings: Settings) -> dict[str, float]:
    """When the certificate of the settings ends; empty without one, or when its date is not read.

    The file was good enough for OpenSSL before it came here.
    """
    source = _source(settings, "ssl.certificate")
    if source is None:
        return {}
    place, is_pem = source
    setting = f"kafka.ssl.certificate.{'pem' if is_pem else 'location'}"
    try:
        pem = place.encode() if is_pem else Path(place).read_bytes()
        return {setting: first_end_s(certificates_in(setting, pem))}
    except (OSError, InvalidConfigError) as error:
        log.warning("the end of a certificate is not known", setting=setting, why=str(error))
        return {}


def _context(settings: Settings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    checks = str(settings.get("ssl.endpoint.identification.algorithm", "https")).lower()
    if checks not in ("https", "none"):
        raise InvalidConfigError(
            f"kafka.ssl.endpoint.identification.algorithm is {checks!r}; it is https or none"
        )
    context.check_hostname = checks == "https"
    if not flag(settings, "enable.ssl.certificate.verification", default=True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _load_authorities(context, settings)
    _load_revoked(context, settings)
    _load_certificate(context, settings)
    if ciphers := settings.get("ssl.cipher.suites"):
        with _named("ssl.cipher.suites"):
            context.set_ciphers(str(ciphers))
    return context


@contextmanager
def _named(key: str) -> Iterator[None]:
    """What goes wrong inside is the fault of this setting."""
    try:
        yield
    except (OSError, ssl.SSLError, ValueError) as error:
        said = (isinstance(error, OSError) and error.strerror) or error
        reason = getattr(error, "reason", None)
        raise InvalidConfigError(f"kafka.{key} can not be used: {reason or said}") from error


def _load_authorities(context: ssl.SSLContext, settings: Settings) -> None:
    load_authorities(context, settings, "ssl.ca")


def load_authorities(context: ssl.SSLContext, settings: Settings, prefix: str) -> None:
    """Trusts the CAs of `<prefix>.pem` and `<prefix>.location`, without them those of the system.

    Raises:
        InvalidConfigError: They can not be read.
    """
    pem, location = settings.get(f"{prefix}.pem"), settings.get(f"{prefix}.location")
    if pem:
        with _named(f"{prefix}.pem"):
            # Between its certificates a bundle has the names of their owners, in any letters.
            context.load_verify_locations(cadata=str(pem).encode("ascii", "ignore").decode())
    if location and location != "probe":
        with _named(f"{prefix}.location"):
            kind = "capath" if Path(str(location)).is_dir() else "cafile"
            context.load_verify_locations(**{kind: str(location)})
    elif not pem:
        context.load_default_certs()


def _load_revoked(context: ssl.SSLContext, settings: Settings) -> None:
    if location := settings.get("ssl.crl.location"):
        with _named("ssl.crl.location"):
            context.load_verify_locations(cafile=str(location))
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _load_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    certificate = _source(settings, "ssl.certificate")
    key = _source(settings, "ssl.key")
    if certificate is None and key is None:
        return
    if certificate is None:
        raise InvalidConfigError("kafka.ssl.key.* is set, kafka.ssl.certificate.location is not")
    asked = False

    def password() -> str:
        # Without this OpenSSL would ask at the terminal.
        nonlocal asked
        asked = True
        return str(settings.get("ssl.key.password") or "")

    with ExitStack() as stack:
        certificate_file = stack.enter_context(_as_file(certificate))
        key_file = None if key is None else stack.enter_context(_as_file(key))
        try:
            context.load_cert_chain(certificate_file, key_file, password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise _not_loaded(settings, error, asked=asked) from error


def _not_loaded(settings: Settings, error: Exception, *, asked: bool) -> InvalidConfigError:
    if asked:
        problem = "does not open the key" if settings.get("ssl.key.password") else "is not set"
        return InvalidConfigError(f"the key is encrypted, and kafka.ssl.key.password {problem}")
    reason = getattr(error, "reason", None) or (
        (isinstance(error, OSError) and error.strerror) or error
    )
    if reason == "KEY_VALUES_MISMATCH":
        return InvalidConfigError(
            "kafka.ssl.key.* is not the key of the certificate in kafka.ssl.certificate.*"
        )
    return InvalidConfigError(
        f"kafka.ssl.certificate.* and kafka.ssl.key.* can not be used: {reason}; both are PEM, and"
        " without kafka.ssl.key.location the key stands in the file of the certificate"
    )


def _source(settings: Settings, prefix: str) -> tuple[str, bool] | None:
    """A text of PEM (True), or the path of a file."""
    if pem := settings.get(f"{prefix}.pem"):
        return str(pem), True
    location = settings.get(f"{prefix}.location")
    return (str(location), False) if location else None


@contextmanager
def _as_file(source: tuple[str, bool]) -> Iterator[str]:
    """Python reads certificates from files alone: a text becomes one, in memory where possible."""
    text, is_pem = source
    if not is_pem:
        yield text
    elif hasattr(os, "memfd_create"):
        file_id = os.memfd_create("pem")
        try:
            os.write(file_id, text.encode())
            yield f"/proc/self/fd/{file_id}"
        finally:
            os.close(file_id)
    else:
        with tempfile.NamedTemporaryFile("w", prefix="sharecoord-", suffix=".pem") as file:
            file.write(text)
            file.flush()
            yield file.name
