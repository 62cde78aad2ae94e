"""Why a broker can not be talked to, in words that name the setting to mend."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Final

from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthenticatedError

RETRY_AFTER_MS: Final = 500

SAID_MAX: Final = 300
"""Letters of a peer's own words in an error."""

_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")

_NO_TLS: Final = (
    "does the port speak TLS? For a plaintext listener set kafka.security.protocol=plaintext"
    " (sasl_plaintext with a log-in)"
)
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "UNEXPECTED_EOF_WHILE_READING": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "NO_CIPHERS_AVAILABLE": "correct kafka.ssl.cipher.suites",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "no cipher or version of TLS is common to both: look at kafka.ssl.cipher.suites and at the"
        " broker's ssl.enabled.protocols"
    ),
    "TLSV1_ALERT_PROTOCOL_VERSION": "the broker has no TLS 1.2; set its ssl.enabled.protocols",
    "UNSUPPORTED_PROTOCOL": "the broker has no TLS 1.2; set its ssl.enabled.protocols",
}
_OURS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": (
        "the broker wants a certificate of ours: set kafka.ssl.certificate.location and"
        " kafka.ssl.key.location"
    ),
    "SSLV3_ALERT_BAD_CERTIFICATE": (
        "the broker wants a certificate of ours that it can check: look at"
        " kafka.ssl.certificate.location and at the broker's ssl.truststore"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": (
        "the broker does not know who signed kafka.ssl.certificate.location: add that CA to the"
        " broker's ssl.truststore"
    ),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (
        "the broker does not trust kafka.ssl.certificate.location: its dates are over, or its CA is"
        " to be added to the broker's ssl.truststore"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "kafka.ssl.certificate.location has expired: renew it",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "kafka.ssl.certificate.location was revoked: renew it",
    "TLSV1_ALERT_ACCESS_DENIED": "the broker does not let kafka.ssl.certificate.location in",
}
"""Reasons of OpenSSL: what the broker said about our certificate."""

_UNKNOWN_CA: Final = (
    "set kafka.ssl.ca.location (or kafka.ssl.ca.pem) to the certificate of the CA that signed the"
    " broker's"
)
_NAME: Final = (
    "connect by a name that is in the broker's certificate (advertised.listeners), or set"
    " kafka.ssl.endpoint.identification.algorithm=none"
)
_VERIFY_FIXES: Final = {
    2: _UNKNOWN_CA,
    18: _UNKNOWN_CA,
    19: _UNKNOWN_CA,
    20: _UNKNOWN_CA,
    21: _UNKNOWN_CA,
    3: "kafka.ssl.crl.location has no list of that CA",
    9: "the clock of one side is wrong, or the broker's certificate begins later",
    10: "renew the broker's certificate (ssl.keystore of the broker)",
    12: "kafka.ssl.crl.location is out of date: fetch a new list",
    23: "the broker's certificate was revoked: renew it",
    62: _NAME,
    64: _NAME,
}
"""X509_V_ERR_* of OpenSSL, by number."""


def unavailable(text: str) -> KafkaUnavailableError:
    """An error that passes with time, or with a fix that the text names."""
    return KafkaUnavailableError(text, retry_after_ms=RETRY_AFTER_MS)


def why_not_connected(endpoint: str, error: OSError | UnicodeError) -> SharecoordError:
    """The error for a connection that could not be made, or that TLS ended."""
    if isinstance(error, ssl.SSLCertVerificationError):
        fix = _VERIFY_FIXES.get(error.verify_code, "look at the broker's certificate")
        return UnauthenticatedError(
            f"the certificate of {endpoint} is not good: {error.verify_message}; {fix}"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").replace(" ", "_")
        if reason in _OURS:
            text = f"{endpoint} refused TLS ({_plain(reason)}): {_OURS[reason]}"
            return UnauthenticatedError(text)
        said = _plain(reason) if reason else str(error)
        hint = _REASONS.get(reason, "look at the broker's log")
        return unavailable(f"no TLS with {endpoint} ({said}): {hint}")
    if isinstance(error, UnicodeError):
        return unavailable(f"{endpoint} is no name of a host: correct kafka.bootstrap.servers")
    if isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        said = error.strerror or str(error) or "closed"
        return unavailable(f"{endpoint} ended the connection at its begin ({said}); {_NO_TLS}")
    return unavailable(f"can not connect to {endpoint}: {_words(error)}")


def _words(error: OSError) -> str:
    """The system's words: asyncio has its own, and only their text where addresses are several."""
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    found = _ERRNO.search(str(error))
    number = error.errno or (int(found[1]) if found else 0)
    return os.strerror(number) if number else str(error)


def printable(text: str) -> str:
    """What a peer said, as it can stand in a log."""
    return "".join(filter(str.isprintable, text))[:SAID_MAX]


def _plain(reason: str) -> str:
    return reason.lower().replace("_", " ")
