"""Files of certificates that librdkafka reads once, when a client is made.

Whoever has clients makes them anew when these files have changed: connections that are there go on
meanwhile, and a file that librdkafka refuses leaves the clients as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sharecoord.errors import InvalidConfigError
from sharecoord.kafka.client import make_admin
from sharecoord.kafka.wire.keys import TLS, Settings, protocol_of
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import certificates_in, first_end_s

_CERTIFICATE: Final = "ssl.certificate.location"
_FILES: Final = (
    "ssl.ca.location",
    "ssl.crl.location",
    _CERTIFICATE,
    "ssl.key.location",
    "ssl.keystore.location",
)

Ends = Mapping[str, float]
"""By setting: when a certificate ends, in seconds since 1970."""


def client_files(settings: Settings) -> WatchedFiles[Ends] | None:
    """The files of the settings; None = there are none, or no TLS.

    Raises:
        InvalidConfigError: A file can not be read, or librdkafka refuses what is in it.
    """
    if protocol_of(settings) not in TLS:
        return None
    places = {f"kafka.{key}": str(settings.get(key) or "") for key in _FILES}
    # OpenSSL looks for authorities in folders whenever it needs one.
    paths = {setting: place for setting, place in places.items() if _is_file(place)}

    def read(contents: Mapping[str, bytes]) -> Ends:
        # It reads the files and compares key and certificate, and is gone at once.
        make_admin(settings)
        return _ends_s(contents)

    return WatchedFiles(paths, read) if paths else None


def _is_file(place: str) -> bool:
    return place not in ("", "probe") and not Path(place).is_dir()


def _ends_s(contents: Mapping[str, bytes]) -> Ends:
    setting = f"kafka.{_CERTIFICATE}"
    try:
        return {setting: first_end_s(certificates_in(setting, contents[setting]))}
    except (KeyError, InvalidConfigError):
        # No certificate is shown, or one whose date only librdkafka's OpenSSL could read.
        return {}
