"""Files that are read again when they change; a bad new one leaves the old content in force."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from sharecoord.errors import InvalidConfigError, SharecoordError

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_INTERVAL_S: Final = 1.0
"""How often files are looked at. A mounted secret of Kubernetes changes once a minute at most."""

FILE_BYTES_MAX: Final = 16 << 20
"""The largest file that is read: a thousand rules have 100 KB; a device or a log is a mistake."""


class Seen(NamedTuple):
    """What tells that a file is another one than at the last look; links are followed."""

    modified_ns: int
    size_bytes: int
    inode: int


def read_file(setting: str, path: str) -> bytes:
    """The content of the file that a setting names.

    Raises:
        InvalidConfigError: The file can not be read, or is too large.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfigError(f"{setting}: can not read {path!r}: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise InvalidConfigError(
            f"{setting}: {path!r} has more than {FILE_BYTES_MAX >> 20} MiB; is it the right file?"
        )
    return content


class WatchedFiles(Generic[T]):
    """What some files say together, such as a certificate and its key.

    `value` is always usable: of the files as they are, or as they were when they were good.
    """

    def __init__(self, paths: Mapping[str, str], read: Callable[[Mapping[str, bytes]], T]) -> None:
        """Reads the files.

        Args:
            paths: The files, by the names of their settings.
            read: Makes the value of their contents, which come by the same names.

        Raises:
            InvalidConfigError: A file can not be read.
            SharecoordError: As `read`.
        """
        self.paths = dict(paths)
        self._read = read
        self.problem = ""
        """Why the files on disk are not in force; "" = they are."""
        self._seen = self._look()
        self._contents = self._content()
        self.value = read(self._contents)

    @property
    def settings(self) -> str:
        """The names of the settings, for people."""
        return ", ".join(self.paths)

    def look(self) -> bool:
        """Reads the files again if they have changed; returns whether the value is a new one.

        Blocks on the disk. Files that can not be used are tried again at each look, since one of
        two that belong together may come later.
        """
        seen = self._look()
        if seen == self._seen and not self.problem:
            return False
        try:
            contents = self._content()
            if contents == self._contents:
                self._seen, self.problem = seen, ""
                return False
            value = self._read(contents)
        except SharecoordError as error:
            self._stay(error.message)
            return False
        except Exception as error:  # noqa: BLE001 - a library's own mistake
            # The watch of the other files goes on. The error may quote secrets.
            self._stay(f"reading it ended with {type(error).__name__}, which should not be")
            return False
        self.value, self._contents, self._seen, self.problem = value, contents, seen, ""
        log.info("a changed file is in force", settings=self.settings)
        return True

    def _stay(self, why: str) -> None:
        """Notes why what the files said before is still in force; told once."""
        if why != self.problem:
            log.error(
                "a changed file can not be used; what it said before stays in force",
                settings=self.settings,
                why=why,
            )
        self.problem = why

    def _look(self) -> dict[str, Seen | None]:
        found: dict[str, Seen | None] = {}
        for path in self.paths.values():
            try:
                stat = Path(path).stat()
            except OSError:
                found[path] = None
            else:
                found[path] = Seen(stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return found

    def _content(self) -> dict[str, bytes]:
        return {setting: read_file(setting, path) for setting, path in self.paths.items()}


class Watched(Protocol):
    """Files that a watch can look at: `WatchedFiles`, or what reads its files by itself."""

    problem: str

    @property
    def settings(self) -> str:
        """The names of the settings, for people."""
        ...

    def look(self) -> bool:
        """Reads the files again if they have changed; returns whether something new is in force."""
        ...


class FileWatch:
    """Looks at all watched files of a process again and again."""

    def __init__(self) -> None:
        self._watched: list[tuple[Watched, Callable[[], None]]] = []

    def add(self, files: Watched, changed: Callable[[], None] = lambda: None) -> None:
        """Watches files; `changed` is called on the loop after their value has changed."""
        self._watched.append((files, changed))

    def problems(self) -> Iterable[tuple[str, str]]:
        """By settings: why their files on disk are not in force; "" = they are."""
        return [(files.settings, files.problem) for files, _ in self._watched]

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Looks once at all files, in a thread."""
        for files, changed in self._watched:
            if await asyncio.to_thread(files.look):
                changed()
