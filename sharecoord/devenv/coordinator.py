"""A coordinator as a process of its own: `sharecoord serve`, with kill -9 and restart in place."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import yaml

from sharecoord.config.sources import ENVIRONMENT_PREFIX
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.processes import LOOPBACK, GuardedProcess, free_ports

START_TIMEOUT_S = 60.0
STOP_GRACE_S = 10.0
POLL_S = 0.02

_RUN_CLI = "import sys; from sharecoord.cli.main import main; sys.exit(main())"


class CoordinatorProcess:
    """Listens on one loopback port for its whole life, over kills and restarts."""

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
        self.address = f"{LOOPBACK}:{port}"
        self.store_path = directory / "store.db"
        self._ready_file = directory / "ready"
        config_file = directory / "coordinator.yaml"
        merged: dict[str, object] = {
            "kafka.bootstrap.servers": bootstrap_servers,
            "store.url": f"sqlite:///{self.store_path.resolve()}",
            "listen.address": self.address,
            "management.port": 0,
            "group.share.auto.offset.reset": "earliest",
            **(settings or {}),
        }
        self.address = str(merged["listen.address"])
        config_file.write_text(yaml.safe_dump(merged), encoding="utf-8")
        files = ["--config", str(config_file), "--ready-file", str(self._ready_file)]
        self._process = GuardedProcess(
            "coordinator",
            [*(program or [sys.executable, "-c", _RUN_CLI, "serve"]), *files],
            log_path=directory / "coordinator.log",
            env=clean_environment(),
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.exit_code

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Starts it and returns at once; see `ready`."""
        self._ready_file.unlink(missing_ok=True)
        self._process.start()

    @property
    def ready(self) -> bool:
        """Whether it serves.

        Raises:
            DevenvError: It ended; the message ends with its log.
        """
        if self._ready_file.is_file():
            return True
        if self._process.exit_code is not None:
            raise self._failed(f"ended with exit code {self._process.exit_code}")
        return False

    def start(self) -> None:
        """Starts it and waits until it serves.

        Raises:
            DevenvError: It ended or did not serve in time; the message ends with its log.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        self.launch()
        try:
            while not self.ready:
                if time.monotonic() > deadline:
                    raise self._failed(f"did not serve within {START_TIMEOUT_S:.0f} s")
                time.sleep(POLL_S)
        except BaseException:
            self._process.kill()
            raise

    def kill(self) -> None:
        """As kill -9."""
        self._process.kill()

    def stop(self) -> None:
        """SIGTERM; kill -9 after 10 s."""
        self._process.stop(STOP_GRACE_S)

    def restart(self) -> None:
        """Starts it again after `kill` or `stop`, on the same port and store."""
        self.start()

    def log_tail(self) -> str:
        """The end of its log."""
        return self._process.log_tail()

    def _failed(self, what: str) -> DevenvError:
        return DevenvError(f"the coordinator {what}; the end of its log:\n{self.log_tail()}")


def clean_environment() -> dict[str, str]:
    """Ours without settings of a coordinator: the file alone says what is run."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)
    }
