"""Where a process listens, keeps its state and writes its events: texts to typed values.

The `parse_*` functions raise ValueError whose text ends the sentence "it must be …"; the settings
table turns it into an error that names the setting.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sharecoord.config.group import check_topic_name
from sharecoord.config.values import mask_url
from sharecoord.errors import InvalidConfigError

ALL_INTERFACES: Final = ("0.0.0.0", "::")
"""Hosts to listen at that nobody can connect to: they mean every address of the machine."""

_HOST_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)"
    r"(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?",
    re.ASCII,
)
_LOOKS_LIKE_IPV4: Final = re.compile(r"[0-9.]+", re.ASCII)
_MAX_PORT: Final = 65_535
# sun_path of Linux holds 108 bytes with the closing NUL.
_MAX_UNIX_PATH_BYTES: Final = 107


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP address; the host has no brackets; port 0 = any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`, an IPv6 address in brackets; also what gRPC takes."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return self.host.lower().rstrip(".") == "localhost"
        mapped = getattr(address, "ipv4_mapped", None)
        return bool((mapped or address).is_loopback)


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix domain socket."""

    path: str

    def __str__(self) -> str:
        """`unix:` and the path; also what gRPC takes."""
        return f"unix:{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Always: a socket file is not reachable over the network."""
        return True


ListenAddress = TcpAddress | UnixAddress


def parse_listen_address(text: str) -> ListenAddress:
    """Reads `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`."""
    word = text.strip()
    if word.startswith("unix:"):
        return _parse_unix(word.removeprefix("unix:"))
    host, separator, port = word.rpartition(":")
    if not separator or not re.fullmatch("[0-9]{1,5}", port, re.ASCII) or int(port) > _MAX_PORT:
        raise ValueError(
            "HOST:PORT with a port from 0 (any free one) to 65535, such as localhost:7070, "
            "or unix:PATH"
        )
    return TcpAddress(_parse_host(host), int(port))


def _parse_unix(path: str) -> UnixAddress:
    # gRPC also writes unix:///absolute/path.
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path or path.endswith("/") or "\0" in path:
        raise ValueError("unix: followed by the path of a socket file")
    if len(os.fsencode(path)) > _MAX_UNIX_PATH_BYTES:
        raise ValueError(
            f"a socket path of at most {_MAX_UNIX_PATH_BYTES} bytes: use a shorter one"
        )
    return UnixAddress(path)


def _parse_host(host: str) -> str:
    if host in ("", "*"):
        raise ValueError("HOST:PORT with a host: 0.0.0.0 or [::] for all interfaces, or localhost")
    if host.startswith("[") and host.endswith("]"):
        try:
            # A chart that gets the address of its pod writes brackets around it, of either family.
            return str(ipaddress.ip_address(host[1:-1]))
        except ValueError:
            raise ValueError("a valid IP address between the brackets") from None
    if ":" in host:
        raise ValueError("[ADDRESS]:PORT for an IPv6 address, such as [::1]:7070")
    if _LOOKS_LIKE_IPV4.fullmatch(host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError("a valid IPv4 address before the port") from None
    if not _HOST_NAME.fullmatch(host):
        raise ValueError("a valid host name before the port")
    return host


_WAYS_TO_KNOW: Final = "tls.client.ca.file, security.tokens.file or security.oidc.issuer"


def check_listen_security(
    address: ListenAddress,
    *,
    tls: bool,
    knows_clients: bool,
    insecure: bool,
    is_fleet: bool = False,
    setting: str = "listen.address",
) -> str:
    """Refuses to serve other machines without TLS, or without knowing who they are.

    Args:
        address: Where to listen.
        tls: Whether the listener speaks TLS.
        knows_clients: Whether certificates, tokens or OIDC tell who connects.
        insecure: Whether the operator accepts what is open, by name (listen.insecure).
        is_fleet: Whether coordinators listen for each other on the same host, too.
        setting: Name of the setting that says where.

    Returns:
        What is open, as a sentence for a warning; "" = nothing is.

    Raises:
        InvalidConfigError: Something is open, and the operator has not accepted it.
    """
    if address.is_loopback or (tls and knows_clients):
        return ""
    dangers, fixes = [], []
    if not tls:
        sent = "what workers and coordinators send" if is_fleet else "what is sent"
        dangers.append(f"there is no TLS, so everybody on the way can read and change {sent}")
        fixes.append("set tls.cert.file and tls.key.file")
    if not knows_clients:
        dangers.append("nothing tells who connects, so whoever reaches the port may do everything")
        fixes.append(f"set {_WAYS_TO_KNOW}")
    is_tcp = setting != "listen.address"
    is_open = f'{setting}="{address}" is open to other machines: {"; ".join(dangers)}'
    fix = " and ".join(fixes)
    if insecure:
        return f"{is_open}. listen.insecure accepts it; to close it, {fix}."
    raise InvalidConfigError(
        f"{is_open}. Either {fix}; or listen on localhost{'' if is_tcp else ' or unix:PATH'}; or "
        "accept it with --insecure (listen.insecure: true).",
        metadata={"key": setting, "value": str(address)},
    )


class StoreKind(StrEnum):
    """Where the state is kept."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A parsed store URL."""

    kind: StoreKind
    url: str = field(repr=False)
    """The URL for SQLAlchemy, with the driver (`postgresql+psycopg://…`), or `memory:`."""
    path: Path | None = None
    """The absolute database file of SQLite, else None."""

    def __str__(self) -> str:
        """The URL as it may be shown."""
        return self.masked

    @property
    def shared(self) -> bool:
        """Whether more than one process may use the store (a fleet needs that)."""
        return self.kind in (StoreKind.POSTGRESQL, StoreKind.MYSQL)

    @property
    def masked(self) -> str:
        """The URL as it may be shown."""
        return mask_url(self.url)


_STORE_EXAMPLES: Final = (
    "sqlite:///PATH (sqlite:////PATH when absolute), "
    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
    "mysql://USER:PASSWORD@HOST:PORT/DATABASE or memory:"
)
# Scheme as users write it -> the store and the scheme with the driver that is installed for it.
_SERVER_SCHEMES: Final = {
    "postgresql": (StoreKind.POSTGRESQL, "postgresql+psycopg"),
    "postgres": (StoreKind.POSTGRESQL, "postgresql+psycopg"),
    "postgresql+psycopg": (StoreKind.POSTGRESQL, "postgresql+psycopg"),
    "mysql": (StoreKind.MYSQL, "mysql+pymysql"),
    "mariadb": (StoreKind.MYSQL, "mysql+pymysql"),
    "mysql+pymysql": (StoreKind.MYSQL, "mysql+pymysql"),
    "mariadb+pymysql": (StoreKind.MYSQL, "mysql+pymysql"),
}


def parse_store_url(text: str) -> StoreUrl:
    """Reads the address of the store; an error never quotes a password."""
    word = text.strip()
    if word in ("memory:", "memory://"):
        return StoreUrl(StoreKind.MEMORY, "memory:")
    scheme, separator, rest = word.partition("://")
    if separator and scheme == "sqlite":
        return _sqlite_url(rest)
    known = _SERVER_SCHEMES.get(scheme) if separator else None
    if known is None:
        raise ValueError(_STORE_EXAMPLES)
    kind, full_scheme = known
    try:
        parts = urlsplit(word)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"a valid URL: {_STORE_EXAMPLES}") from None
    if len(parts.path) < 2 or not (host or "host=" in parts.query):
        raise ValueError(f"a URL with a host and a database: {_STORE_EXAMPLES}")
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        # Otherwise a part of the password would become the database's name, or an option, and be
        # shown.
        raise ValueError(
            'a URL with at most one "@", before the host: "/", "?", "#", "@" and ":" of a password '
            "are percent-encoded"
        )
    return StoreUrl(kind, f"{full_scheme}://{rest}")


def _sqlite_url(rest: str) -> StoreUrl:
    path_text = rest.removeprefix("/")
    if path_text == rest or not path_text or path_text.startswith(":memory:"):
        raise ValueError(
            "sqlite:/// followed by a file path, or memory: for a store without a file"
        )
    if "?" in path_text or path_text.startswith("file:"):
        raise ValueError("sqlite:/// followed by a plain file path without options")
    if path_text.endswith("/"):
        raise ValueError("sqlite:/// followed by the path of a file, not of a directory")
    return sqlite_store_url(Path(path_text))


def sqlite_store_url(path: Path) -> StoreUrl:
    """The URL of a SQLite file; `~` and relative paths are made absolute."""
    absolute = Path(os.path.abspath(_expanded(path)))  # noqa: PTH100 (resolve() follows links)
    return StoreUrl(StoreKind.SQLITE, f"sqlite:///{absolute}", absolute)


def _expanded(path: Path) -> Path:
    """The path with the home directory in the place of `~`.

    A user id that is in no list of users has none without HOME.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(
            "a path without ~, because no home directory is known for it (HOME is not set)"
        ) from error


def default_store_url(environ: Mapping[str, str]) -> StoreUrl:
    """The SQLite file that is used when nobody named a store.

    It lies in `$XDG_STATE_HOME/sharecoord/`, else in `~/.local/state/sharecoord/`. Nothing is
    created here.

    Raises:
        InvalidConfigError: The user has no home directory.
    """
    state_home = environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore a relative path.
    if not state_home.startswith("/"):
        try:
            home = environ.get("HOME") or str(Path.home())
        except RuntimeError as error:
            raise InvalidConfigError(
                "store.url is not set, and its default lies in the home directory, which this user "
                "does not have. Give --store sqlite:////PATH/sharecoord.db, or set HOME or "
                "XDG_STATE_HOME",
                metadata={"key": "store.url"},
            ) from error
        state_home = f"{home}/.local/state"
    return sqlite_store_url(Path(state_home) / "sharecoord" / "sharecoord.db")


class EventsSinkKind(StrEnum):
    """Where events are written."""

    OFF = "off"
    PARQUET = "parquet"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class EventsSink:
    """A parsed events sink."""

    kind: EventsSinkKind = EventsSinkKind.OFF
    target: str = ""
    """Directory of PARQUET, topic of KAFKA, empty for OFF."""

    def __str__(self) -> str:
        """The text that the parser reads back."""
        return f"{self.kind.value}:{self.target}" if self.target else self.kind.value


def parse_events_sink(text: str) -> EventsSink:
    """Reads `off`, `parquet:DIR` or `kafka:TOPIC`."""
    kind, _, target = text.strip().partition(":")
    if kind in ("", "off") and not target:
        return EventsSink()
    if kind == "parquet" and target:
        _expanded(Path(target))
        return EventsSink(EventsSinkKind.PARQUET, target)
    if kind == "kafka" and target:
        return EventsSink(EventsSinkKind.KAFKA, check_topic_name(target))
    raise ValueError("off, parquet:DIRECTORY or kafka:TOPIC")


class AuditSinkKind(StrEnum):
    """Where the audit trail is written."""

    OFF = "off"
    STDOUT = "stdout"
    FILE = "file"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True)
class AuditSink:
    """A parsed audit sink."""

    kind: AuditSinkKind = AuditSinkKind.OFF
    target: str = ""
    """Path of FILE, topic of KAFKA, else empty."""

    def __str__(self) -> str:
        """The text that the parser reads back."""
        return f"{self.kind.value}:{self.target}" if self.target else self.kind.value


def parse_audit_sink(text: str) -> AuditSink:
    """Reads `off`, `stdout`, `file:PATH` or `kafka:TOPIC`."""
    kind, _, target = text.strip().partition(":")
    if kind in ("", "off", "stdout") and not target:
        return AuditSink(AuditSinkKind(kind or "off"))
    if kind == "file" and target:
        return AuditSink(AuditSinkKind.FILE, str(_expanded(Path(target))))
    if kind == "kafka" and target:
        return AuditSink(AuditSinkKind.KAFKA, check_topic_name(target))
    raise ValueError("off, stdout, file:PATH or kafka:TOPIC")
