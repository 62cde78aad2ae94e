"""Options that commands share, readers of their texts, and clients of a coordinator."""

from __future__ import annotations

import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from sharecoord.cli.output import FORMATS, Output, note

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from sharecoord_sdk import ShareConsumer
    from sharecoord_sdk.admin import AdminClient

    ParamType = click.ParamType[Any]
else:
    # Generic in Click's newer releases only.
    ParamType = click.ParamType

PARTITION: Final = click.IntRange(0, 2**31 - 1)
OFFSET: Final = click.IntRange(0, 2**63 - 1)
"""Bounds of Kafka's protocol."""

FOLDER_CONTEXT: Final = {"token_normalize_func": lambda name: "out" if name == "output" else name}
"""Click's settings for commands that write a folder: --output is the same option as --out."""

FILE: Final = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


class Parsed(ParamType):
    """An option whose text `parse` reads; its ValueError is the end of "it must be …"."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value of a text."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r}: it must be {error}", param, ctx)


Settings = dict[str, Any]
Connect = Callable[[], "AdminClient"]
"""Opens the client for the coordinator that a command's options name."""


def _make_admin(settings: Settings) -> AdminClient:
    from sharecoord_sdk.admin import AdminClient

    return AdminClient(settings)


def _make_consumer(settings: Settings) -> ShareConsumer:
    from sharecoord_sdk import ShareConsumer

    return ShareConsumer(settings)


@dataclass
class Services:
    """Makers of clients; the context object of the command line."""

    make_admin: Callable[[Settings], AdminClient] = _make_admin
    make_consumer: Callable[[Settings], ShareConsumer] = _make_consumer


TOKEN_VARIABLE: Final = "SHARECOORD_TOKEN"
KEY_PASSWORD_VARIABLE: Final = "SHARECOORD_KEY_PASSWORD"
"""Secrets come from files and variables alone: everybody on a machine reads the flags of its
processes."""

TOKEN_LIFE_S: Final = 60.0
"""How long a token file counts, in seconds: a command that runs on reads it again within this time,
and shows the coordinator a token that has taken the place of the former one."""

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_TOKEN_CHARS_MAX: Final = 15_000
"""gRPC takes headers of 16 KiB together, at most."""
_PROTOCOLS: Final = {
    (False, False): "plaintext",
    (True, False): "ssl",
    (False, True): "sasl_plaintext",
    (True, True): "sasl_ssl",
}
"""Kafka's names, by whether there are TLS and credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What the flags say about the connection to the coordinator."""

    bootstrap_server: str
    command_config: Path | None
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None
    token_file: Path | None

    def settings(self, older_config: Path | None = None) -> Settings:
        """The SDK's configuration: that of --command-config, then variables, then flags.

        Args:
            older_config: The file of an older name of --command-config.
        """
        found: Settings = dict(self._of_file(self.command_config or older_config))
        protocol = str(found.get("security.protocol", "")).lower()
        has_tls, has_credentials = protocol.endswith("ssl"), protocol.startswith("sasl")
        files = {"ca": self.ca_file, "certificate": self.cert_file, "key": self.key_file}
        for name, path in files.items():
            if path is not None:
                found.pop(f"ssl.{name}.pem", None)
                found[f"ssl.{name}.location"] = str(path)
                has_tls = True
        if password := os.environ.get(KEY_PASSWORD_VARIABLE):
            found["ssl.key.password"] = password
        if (callback := self._token_callback()) is not None:
            found = {key: value for key, value in found.items() if not key.startswith("sasl.")}
            found |= {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": callback}
            has_credentials = True
            # No other machine reads what goes over a Unix socket.
            has_tls = has_tls or not self.bootstrap_server.startswith("unix:")
        if has_tls or has_credentials:
            found["security.protocol"] = _PROTOCOLS[has_tls, has_credentials]
        return {**found, "bootstrap.servers": self.bootstrap_server}

    @staticmethod
    def _of_file(path: Path | None) -> Mapping[str, str]:
        if path is None:
            return {}
        from sharecoord.config.kafka_properties import read_kafka_config

        read = read_kafka_config(path, os.environ)
        for warning in read.warnings:
            note(f"sharecoord: {path}: {warning}")
        return read.properties

    def _token_callback(self) -> TokenCallback | None:
        """Gives the token of the file or of the variable; None without either.

        Raises:
            click.UsageError: Both are given, or it is no token.
        """
        text, path = os.environ.get(TOKEN_VARIABLE, ""), self.token_file
        if path is None:
            if not text:
                return None
            token = _check_token(TOKEN_VARIABLE, text)
            return lambda _: (token, math.inf)
        source = click.get_current_context().get_parameter_source("token_file")
        if text and source is not click.core.ParameterSource.COMMANDLINE:
            both = f"{TOKEN_VARIABLE} and SHARECOORD_TOKEN_FILE are both set"
            raise click.UsageError(f"{both}; keep one of them.")

        def read(_: str) -> tuple[str, float]:
            name = f"--token-file {path}"
            try:
                content = path.read_text(encoding="ascii", errors="replace")
            except OSError as error:
                raise OSError(f"{name}: {error.strerror}") from None
            return _check_token(name, content), time.time() + TOKEN_LIFE_S

        read("")
        return read


TokenCallback = Callable[[str], tuple[str, float]]
"""The SDK's `oauth_cb`: returns a token and the Unix time of its end."""


def _check_token(where: str, content: str) -> str:
    """The token of a text. The error does not show what is there instead."""
    token = content.strip()
    if not _TOKEN.fullmatch(token) or len(token) > _TOKEN_CHARS_MAX:
        wanted = f"one token: 1 to {_TOKEN_CHARS_MAX} visible characters of ASCII"
        raise click.UsageError(f"{where}: it must hold {wanted}.")
    return token


def options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Options as one decorator, shown in this order."""

    def add(function: F) -> F:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return add


def _file_option(name: str, meaning: str) -> Callable[[Any], Any]:
    variable = f"SHARECOORD_{name.strip('-').upper().replace('-', '_')}"
    return click.option(name, type=FILE, envvar=variable, show_envvar=True, help=meaning)


_CONNECTION_OPTIONS: Final = options(
    click.option(
        "--bootstrap-server",
        envvar="SHARECOORD_BOOTSTRAP_SERVER",
        default="localhost:7070",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The coordinator (not Kafka): host:port[,host:port] or unix:/path.",
    ),
    click.option(
        "--command-config",
        type=FILE,
        envvar="SHARECOORD_COMMAND_CONFIG",
        show_envvar=True,
        help="Properties file for the connection to the coordinator (security.protocol, "
        "ssl.*, sasl.*). Variables and flags win over it.",
    ),
    _file_option("--ca-file", "CAs (PEM) that signed the coordinator's certificate; with TLS."),
    _file_option("--cert-file", "This client's certificate chain (PEM); with TLS."),
    _file_option(
        "--key-file",
        f"The certificate's private key (PEM); its password: {KEY_PASSWORD_VARIABLE}.",
    ),
    _file_option(
        "--token-file",
        f"A file with the token to show, or the token itself in {TOKEN_VARIABLE}; over TLS, or to "
        "a Unix socket.",
    ),
)


def connection_options(function: F) -> F:
    """The options of a connection; the command gets them as one `connection`."""

    @functools.wraps(function)
    def command(
        *,
        bootstrap_server: str,
        command_config: Path | None,
        ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        token_file: Path | None,
        **given: Any,
    ) -> object:
        connection = Connection(
            bootstrap_server=bootstrap_server,
            command_config=command_config,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            token_file=token_file,
        )
        return function(connection=connection, **given)

    return _CONNECTION_OPTIONS(cast("F", command))


def admin_options(timeout_ms: int = 30_000) -> Callable[[F], F]:
    """The options of a connection; the command gets `connect`, which opens the client."""

    def add(function: F) -> F:
        @functools.wraps(function)
        def command(*, connection: Connection, timeout_ms: int, **given: Any) -> object:
            services = click.get_current_context().ensure_object(Services)

            def connect() -> AdminClient:
                settings = connection.settings()
                return services.make_admin(settings | {"default.api.timeout.ms": timeout_ms})

            return function(connect=connect, **given)

        timeout = click.option(
            "--timeout",
            "timeout_ms",
            type=click.IntRange(1),
            default=timeout_ms,
            show_default=True,
            metavar="MS",
            help="Longest wait for one answer, in milliseconds.",
        )
        return connection_options(timeout(cast("F", command)))

    return add


LONG_TIMEOUT_MS: Final = 300_000
"""Default of --timeout for commands that read whole topics."""

no_color_option: Final = click.option(
    "--no-color", is_flag=True, help="Print without colours (as NO_COLOR)"
)


def output_options(function: F) -> F:
    """-o and --no-color; the command gets them as one `output`."""

    @functools.wraps(function)
    def command(*, output: str, no_color: bool, **given: Any) -> object:
        return function(output=Output(output, not no_color), **given)

    form = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print.",
    )
    return options(form, no_color_option)(cast("F", command))


group_option: Final = click.option("--group", required=True, help="The share group.")
topics_option: Final = click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:0,1]", help="The topic (repeatable)."
)
DRY_RUN: Final = "dry run: nothing was changed; use --execute to do it"


def parse_topics(texts: Iterable[str]) -> dict[str, Sequence[int]]:
    """Reads `topic` (no partitions: all of them) and `topic:0,1`; refuses all else."""
    found: dict[str, list[int]] = {}
    whole: set[str] = set()
    for text in texts:
        topic, colon, numbers = text.partition(":")
        parts = [part.strip() for part in numbers.split(",")] if colon else []
        if not topic or any(not part.isdecimal() for part in parts):
            raise click.UsageError(f"--topic {text}: it must be TOPIC or TOPIC:0,1,2.")
        found.setdefault(topic, []).extend(int(part) for part in parts)
        if not parts:
            whole.add(topic)
    return {
        topic: [] if topic in whole else sorted(set(numbers)) for topic, numbers in found.items()
    }


def parse_datetime_ms(text: str, option: str = "--to-datetime") -> int:
    """Reads `YYYY-MM-DDThh:mm:ss.sss`, UTC without a zone, as milliseconds since the epoch."""
    try:
        found = datetime.fromisoformat(text.strip())
        if "T" not in text:
            raise ValueError("there is no time of day")
    except ValueError as error:
        raise click.UsageError(
            f"{option} {text}: {error}; it must be YYYY-MM-DDThh:mm:ss.sss, "
            "such as 2026-01-31T12:00:00.000."
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def parse_by_duration_ms(text: str) -> int:
    """Reads an ISO-8601 duration such as `PT1H30M` or `P1DT12H`, as Kafka's tools do."""
    from sharecoord.config.values import parse_iso_duration_ms

    try:
        return parse_iso_duration_ms(text.strip())
    except ValueError as error:
        raise click.UsageError(f"--by-duration {text}: it must be {error}.") from None


def parse_pair(option: str, text: str, example: str = "") -> tuple[str, str]:
    """Reads `NAME=VALUE`; refuses a text without a name or without `=`."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        such_as = f", such as {example}" if example else ""
        # The value may be a password.
        begin = re.match(r"[\w.-]*", text)
        word = begin[0] if begin is not None else ""
        raise click.UsageError(f"{option} {word}: it must be NAME=VALUE{such_as}.")
    return name.strip(), value
