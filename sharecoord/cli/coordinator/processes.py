"""`sharecoord serve --processes N`: N coordinators of a fleet behind one TCP port.

The system spreads connections over them (SO_REUSEPORT). A process that dies is started again; one
that can not start at all ends the others. The first starts before the others: a reason that keeps
it from serving would keep all of them, and is printed once.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import structlog

from sharecoord.api.sockets import check_free
from sharecoord.app import (
    configure_process_logging,
    heeds_hangup,
    id_of,
    on_hangup,
    serve,
    write_ready_file,
)
from sharecoord.cli.failures import failure_of
from sharecoord.config.endpoints import TcpAddress
from sharecoord.config.process import ProcessConfig
from sharecoord.errors import SharecoordError

log = structlog.get_logger(__name__)

POLL_S: Final = 0.1
RESTART_S: Final = 1.0
RESTART_MAX_S: Final = 30.0
"""Longest pause before a process that died is started again; the pause doubles each time."""
STEADY_S: Final = 60.0
"""After a life of this length, the pause before the next start is the shortest again."""
STOP_SPARE_S: Final = 10.0
"""A process that has not ended this long after its drain is killed."""


def serve_processes(config: ProcessConfig, *, ready_file: Path | None = None) -> int:
    """Serves with several processes until SIGTERM or SIGINT; returns the exit code.

    Raises:
        InvalidConfigError: The port can not be had.
    """
    configure_process_logging(config)
    address = config.listen.address
    assert isinstance(address, TcpAddress), "checked with the settings"
    check_free(address)
    with _holding(address) as held, tempfile.TemporaryDirectory(prefix="sharecoord-") as directory:
        parts = [
            _Part(config_of(config, held, index), Path(directory) / str(index))
            for index in range(config.coordinator.processes)
        ]
        return _Supervisor(parts, config.coordinator.drain_timeout_ms / 1000).run(ready_file)


@contextmanager
def _holding(address: TcpAddress) -> Iterator[TcpAddress]:
    """Keeps a port for the processes, also between their lives, without listening at it."""
    family, kind, protocol, _, place = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(place)
        yield TcpAddress(address.host, held.getsockname()[1])


def config_of(config: ProcessConfig, address: TcpAddress, index: int) -> ProcessConfig:
    """The settings of process number `index`, from 0: an id and ports of its own.

    Members connect to the common `address`, and get any of the processes.
    """
    coordinator, management = config.coordinator, config.management
    peer_address = coordinator.peer_address
    return dataclasses.replace(
        config,
        listen=dataclasses.replace(config.listen, address=address),
        coordinator=dataclasses.replace(
            coordinator,
            id=f"{id_of(config)}-{index}",
            peer_address=peer_address
            and dataclasses.replace(peer_address, port=peer_address.port + index),
            peer_port=coordinator.peer_port and coordinator.peer_port + index,
        ),
        management=dataclasses.replace(
            management, port=management.port and management.port + index
        ),
        kafka_port=dataclasses.replace(
            config.kafka_port,
            listen=_moved(config.kafka_port.listen, index),
            advertised=_moved(config.kafka_port.advertised, index),
        ),
    )


def _moved(addresses: Iterable[TcpAddress], index: int) -> tuple[TcpAddress, ...]:
    """A member's connections must all come to one process, so each has ports of its own."""
    return tuple(
        dataclasses.replace(each, port=each.port and each.port + index) for each in addresses
    )


class _Part:
    """A process of the fleet, over all its lives."""

    def __init__(self, config: ProcessConfig, ready_file: Path) -> None:
        self.config = config
        self.ready_file = ready_file
        self.process: BaseProcess | None = None
        self.was_ready = False
        self.starts_at_s = 0.0
        self._started_s = 0.0
        self._delay_s = RESTART_S

    @property
    def name(self) -> str:
        return self.config.coordinator.id

    def start(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        # A fresh interpreter: gRPC and librdkafka have threads, which do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(
            target=_live, args=(self.config, self.ready_file), name=self.name
        )
        self.process.start()
        self._started_s = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the process serves, or has served."""
        self.was_ready = self.was_ready or self.ready_file.is_file()
        return self.was_ready

    def died(self) -> None:
        """Sets the time of the next start."""
        now_s = time.monotonic()
        if now_s - self._started_s >= STEADY_S:
            self._delay_s = RESTART_S
        self.starts_at_s = now_s + self._delay_s
        self._delay_s = min(2 * self._delay_s, RESTART_MAX_S)
        self.process = None


def _live(config: ProcessConfig, ready_file: Path) -> None:
    """The main function of a process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        sys.exit(serve(config, ready_file=ready_file))
    except SharecoordError as error:
        failure = failure_of(error)
        failure.show()
        sys.exit(failure.exit_code)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "started by the supervisor"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor:
    """Starts the processes, restarts those that die, and ends all."""

    def __init__(self, parts: list[_Part], drain_s: float) -> None:
        self._parts = parts
        self._drain_s = drain_s
        self._stopping = self._hung_up = False

    def run(self, ready_file: Path | None) -> int:
        """Runs until a signal, or until a process can not start; returns the exit code."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._stop)
        if heeds_hangup():
            signal.signal(signal.SIGHUP, self._hang_up)
        hung_up = on_hangup(self._stop)
        self._parts[0].start()
        told = ready_file is None
        exit_code = 0
        try:
            while not self._stopping and not exit_code:
                exit_code = self._look()
                if self._hung_up:
                    self._hung_up = False
                    hung_up()
                if not told and all(part.ready for part in self._parts):
                    assert ready_file is not None, "to be told"
                    write_ready_file(ready_file, str(self._parts[0].config.listen.address))
                    told = True
        finally:
            self._end()
        return exit_code

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _hang_up(self, *_: object) -> None:
        # Logged outside of the signal's handler, which may have interrupted a line.
        self._hung_up = True

    def _look(self) -> int:
        """Waits a moment for deaths; returns the code of a process that did not start, or 0."""
        running = [part.process for part in self._parts if part.process is not None]
        wait([process.sentinel for process in running], timeout=POLL_S)
        for part in self._parts:
            process = part.process
            if process is None:
                if self._parts[0].ready and time.monotonic() >= part.starts_at_s:
                    part.start()
            elif process.exitcode is not None and not self._stopping:
                if not part.ready:
                    return process.exitcode if process.exitcode > 0 else 1
                log.error("coordinator ended", id=part.name, exit_code=process.exitcode)
                part.died()
        return 0

    def _end(self) -> None:
        running = [part.process for part in self._parts if part.process is not None]
        for process in running:
            process.terminate()
        deadline_s = time.monotonic() + self._drain_s + STOP_SPARE_S
        for process in running:
            process.join(max(0.0, deadline_s - time.monotonic()))
            if process.exitcode is None:
                log.error("coordinator killed: it did not end", id=process.name)
                process.kill()
                process.join()
