"""How commands reach the coordinator; what tests put in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharecoord.cli.output import note

if TYPE_CHECKING:
    from sharecoord_sdk import ShareConsumer
    from sharecoord_sdk.admin import AdminClient

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

    def admin(
        self, bootstrap_server: str, command_config: Path | None, timeout_ms: int
    ) -> AdminClient:
        """A client for the coordinator that the options name."""
        settings = connection_settings(bootstrap_server, command_config)
        return self.make_admin(settings | {"default.api.timeout.ms": timeout_ms})


def connection_settings(bootstrap_server: str, command_config: Path | None) -> Settings:
    """The SDK's configuration: the file's keys and the address.

    Raises:
        InvalidConfigError: The file can not be read, or one of its keys can not be translated.
    """
    found: Mapping[str, str] = {}
    if command_config is not None:
        from sharecoord.config.kafka_properties import read_kafka_config

        read = read_kafka_config(command_config)
        for warning in read.warnings:
            note(f"sharecoord: {command_config}: {warning}")
        found = read.properties
    return {**found, "bootstrap.servers": bootstrap_server}
