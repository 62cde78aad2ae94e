"""`sharecoord serve`: flags to settings, then `sharecoord.app`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from sharecoord.cli.options import FILE, parse_pair

_SETTING_OF: Final = {
    "kafka": "kafka.bootstrap.servers",
    "store": "store.url",
    "listen": "listen.address",
    "events": "events.sink",
    "insecure": "listen.insecure",
    "processes": "coordinator.processes",
    "kafka_listen": "kafka.port.listen",
    "log_level": "log.level",
    "log_format": "log.format",
}
"""Full names of the settings that have a flag of their own."""


@click.command()
@click.option("--kafka", metavar="HOST:PORT[,...]", help="Kafka's bootstrap servers.")
@click.option(
    "--store",
    metavar="URL",
    help="sqlite:///PATH, postgresql://USER:${file:PATH}@…, mysql://…, memory:",
)
@click.option(
    "--listen", metavar="HOST:PORT|unix:PATH", help="Where workers connect; port 0 = any."
)
@click.option(
    "--kafka-listen",
    multiple=True,
    callback=lambda _ctx, _option, addresses: ",".join(addresses) or None,
    metavar="HOST:PORT",
    help="Where share consumers connect that speak Kafka's protocol (repeatable).",
)
@click.option("--config", "config_file", type=FILE, help="YAML file with settings.")
@click.option("--kafka-config", type=FILE, help="Kafka client keys: librdkafka's or Java's format.")
@click.option("--events", metavar="parquet:DIR|kafka:TOPIC", help="Write the event log there.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without TLS, or without knowing who they are.",
)
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the address there once it serves.",
)
@click.option(
    "--processes", type=click.IntRange(1), help="Coordinators of a fleet on this machine."
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["auto", "console", "json"]))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other setting, by its full name (repeatable); `config show --effective` lists them.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    config_file: Path | None,
    kafka_config: Path | None,
    ready_file: Path | None,
    settings: tuple[str, ...],
    **given: Any,
) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C.

    Without options: Kafka at localhost:9092, a SQLite file below $XDG_STATE_HOME (its path is
    printed), workers at localhost:7070. Settings come from flags, then SHARECOORD_* variables,
    then --kafka-config, then --config, then defaults.

    A command line can be read by every user of the machine: give a password in a file or a
    variable, or write ${file:PATH} or ${env:NAME} in its place.
    """
    # A flag that was not given leaves --set alone.
    own = {_SETTING_OF[name]: value for name, value in given.items() if value not in (None, False)}
    pairs = (parse_pair("--set", text, "log.level=debug") for text in settings)
    flags: dict[str, object] = {**dict(pairs), **own}
    _load_structlog_alone()
    from sharecoord.config.process import load

    config = load(config_file, os.environ, flags, kafka_config=kafka_config)
    if ready_file is None and config.listen.ready_file:
        ready_file = Path(config.listen.ready_file)
    if config.coordinator.processes > 1:
        from sharecoord.cli.coordinator.processes import serve_processes as run
    else:
        from sharecoord.app import serve as run

    ctx.exit(run(config, ready_file=ready_file))


def _load_structlog_alone() -> None:
    """Loads structlog without rich and pygments, which it takes where it finds them: 5 MB.

    They would colour tracebacks, and ours are texts by the time they are shown.
    """
    if "rich" not in sys.modules:
        sys.modules["rich"] = None  # type: ignore[assignment]
        import structlog  # noqa: F401

        del sys.modules["rich"]
