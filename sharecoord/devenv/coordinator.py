"""A coordinator as a process of its own: `sharecoord serve`, with kill -9 and restart in place."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import yaml

from sharecoord.config.sources import ENVIRONMENT_PREFIX
from sharecoord.devenv.processes import LOOPBACK, GuardedProcess, Server, free_ports
from sharecoord.devenv.security import write_security

START_TIMEOUT_S = 60.0
STOP_GRACE_S = 10.0

_RUN_CLI = "import sys; from sharecoord.cli.main import main; sys.exit(main())"


class CoordinatorProcess(Server):
    """Listens on one loopback port for its whole life, over kills and restarts."""

    name = "the coordinator"
    has_security: ClassVar[bool] = False
    """Whether coordinators that are given no settings of security get those of `write_security`; a
    run of the test suites may set it."""
    _process: GuardedProcess

    def __init__(
        self,
        bootstrap_servers: str,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        program: list[str] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            bootstrap_servers: Address of the Kafka cluster.
            directory: An existing directory for settings, log and the SQLite file.
            settings: More settings by their full names; they win over the ones here.
            program: Another program than `sharecoord serve`, which takes the same
                `--config FILE --ready-file FILE`.
        """
        (port,) = free_ports(1)
        self.store_path = directory / "store.db"
        self._ready_file = directory / "ready"
        config_file = directory / "coordinator.yaml"
        given = settings or {}
        has_own = any(name.startswith("security.") for name in given)
        secured = self.has_security and not has_own
        merged: dict[str, object] = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "store.url": f"sqlite:///{self.store_path.resolve()}",
            "listen.address": f"{LOOPBACK}:{port}",
            "management.port": 0,
            "group.share.auto.offset.reset": "earliest",
            **(write_security(directory) if secured else {}),
            **given,
        }
        self.address = str(merged["listen.address"])
        config_file.write_text(yaml.safe_dump(merged), encoding="utf-8")
        files = ["--config", str(config_file), "--ready-file", str(self._ready_file)]
        self._process = GuardedProcess(
            self.name,
            [*(program or [sys.executable, "-c", _RUN_CLI, "serve"]), *files],
            log_path=directory / "coordinator.log",
            env=clean_environment(),
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.exit_code

    def launch(self) -> None:
        """Starts it and returns at once; see `wait_ready`."""
        self._ready_file.unlink(missing_ok=True)
        self._process.start()

    @property
    def ready(self) -> bool:
        """Whether it serves; DevenvError with the end of its log when it has ended."""
        if self._ready_file.is_file():
            return True
        if self._process.exit_code is not None:
            raise self._process.failed(f"ended with exit code {self._process.exit_code}")
        return False

    def wait_ready(self) -> None:
        """Waits until it serves; DevenvError with the end of its log when it ended or is late."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        self._process.wait_until(self._ready_file.is_file, deadline_s)

    def start(self) -> None:
        """Starts it, also after `kill` or `stop`; returns, or raises, as `wait_ready` does."""
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM; kill -9 after 10 s."""
        self._process.stop(STOP_GRACE_S)

    close = stop
    restart = start

    def log_tail(self) -> str:
        """The end of its log."""
        return self._process.log_tail()


def clean_environment() -> dict[str, str]:
    """The environment of this process without settings of a coordinator."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)
    }
