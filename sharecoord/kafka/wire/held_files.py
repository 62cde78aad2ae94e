"""Files of librdkafka's settings, held in memory: its clients read the files when they are made.

A client that is made while a file on disk is broken gets the content that is in force, as one that
was made before. Where there are no files in memory (not Linux), clients read what lies on disk.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sharecoord.kafka.wire.keys import Settings
from sharecoord.security.files import read_file

FILES: Final = (
    "ssl.ca.location",
    "ssl.crl.location",
    "ssl.certificate.location",
    "ssl.key.location",
)
"""Keys of librdkafka that name files of TLS, and that every reader of Kafka understands."""


def places_of(settings: Settings, *more: str) -> dict[str, str]:
    """The files that the settings name, by librdkafka's keys; `more` are keys beside `FILES`.

    Folders of authorities are none of them: OpenSSL looks into those whenever it needs one.
    """
    places = {key: str(settings.get(key) or "") for key in (*FILES, *more)}
    return {
        key: place
        for key, place in places.items()
        if place not in ("", "probe") and not Path(place).is_dir()
    }


def contents_of(settings: Settings) -> dict[str, bytes]:
    """The contents of the files of the settings, by librdkafka's keys.

    Raises:
        InvalidConfigError: A file can not be read.
    """
    return {key: read_file(f"kafka.{key}", place) for key, place in places_of(settings).items()}


class HeldFiles:
    """Copies of files in memory, for as long as this object is there."""

    def __init__(self, settings: Settings, contents: Mapping[str, bytes]) -> None:
        """Copies contents, by librdkafka's keys; other keys keep their values."""
        self.settings: dict[str, str | int | float | bool] = dict(settings)
        """With the copies in place of the files; of use as long as this object is there."""
        if hasattr(os, "memfd_create"):
            for key, content in contents.items():
                self.settings[key] = self._copy_of(key, content)

    def _copy_of(self, key: str, content: bytes) -> str:
        number = os.memfd_create(key)
        weakref.finalize(self, os.close, number)
        with open(number, "wb", closefd=False) as file:
            file.write(content)
        return f"/proc/self/fd/{number}"
