"""Files of certificates that librdkafka reads once, when a client is made.

Whoever has clients makes them anew when these files have changed: connections that are there go on
meanwhile, and a file that librdkafka refuses leaves the clients as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from sharecoord.errors import InvalidConfigError
from sharecoord.kafka.client import make_admin
from sharecoord.kafka.wire.held_files import places_of
from sharecoord.kafka.wire.keys import TLS, Settings, protocol_of
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import certificates_in, first_end_s

_CERTIFICATE: Final = "ssl.certificate.location"
_KEYSTORE: Final = "ssl.keystore.location"


class ClientFiles(NamedTuple):
    """What is in the files."""

    contents: Mapping[str, bytes] = {}
    """By librdkafka's keys."""
    ends_s: Mapping[str, float] = {}
    """By setting: when a certificate ends, in seconds since 1970."""


def client_files(settings: Settings) -> WatchedFiles[ClientFiles] | None:
    """The files of the settings; None = there are none, or no TLS.

    Raises:
        InvalidConfigError: A file can not be read, or librdkafka refuses what is in it.
    """
    if protocol_of(settings) not in TLS:
        return None
    paths = {f"kafka.{key}": place for key, place in places_of(settings, _KEYSTORE).items()}

    def read(contents: Mapping[str, bytes]) -> ClientFiles:
        # The client reads the files and compares key and certificate, and is gone at once.
        make_admin(settings)
        found = {setting.removeprefix("kafka."): each for setting, each in contents.items()}
        return ClientFiles(found, _ends_s(found))

    return WatchedFiles(paths, read) if paths else None


def _ends_s(contents: Mapping[str, bytes]) -> Mapping[str, float]:
    setting = f"kafka.{_CERTIFICATE}"
    try:
        return {setting: first_end_s(certificates_in(setting, contents[_CERTIFICATE]))}
    except (KeyError, InvalidConfigError):
        # No certificate is shown, or one whose date only librdkafka's OpenSSL could read.
        return {}
