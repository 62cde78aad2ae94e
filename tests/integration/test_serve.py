"""`sharecoord serve` at its start and its end: what it says, and what signals do."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sharecoord.app import on_hangup
from sharecoord.devenv.coordinator import CoordinatorProcess, clean_environment
from tests.support import KafkaUnderTest, eventually

RUN = "import sys; from sharecoord.cli.main import main; sys.exit(main())"
START_S = 60.0


@contextmanager
def serve(directory: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The command with nothing but these flags, and where its standard error goes."""
    errors = directory / "stderr"
    command = [sys.executable, "-c", RUN, "serve", "--store", f"sqlite:///{directory}/s.db"]
    with errors.open("wb") as file:
        process = subprocess.Popen([*command, *flags], stderr=file, env=clean_environment())
    try:
        yield process, errors
    finally:
        process.kill()
        process.wait()


def test_the_wait_for_kafka_is_said(tmp_path: Path) -> None:
    with serve(tmp_path, "--kafka", "127.0.0.1:1", "--listen", "localhost:0") as (process, errors):
        slow = "no answer from Kafka yet"
        eventually(lambda: slow in errors.read_text(), START_S, "the line")
        said = errors.read_text()
        assert process.poll() is None
    assert "127.0.0.1:1" in said


def test_a_taken_default_of_the_management_port_is_no_reason_to_end(
    kafka_broker: KafkaUnderTest, tmp_path: Path
) -> None:
    flags = ["--kafka", kafka_broker.bootstrap_servers, "--listen", "localhost:0"]
    with ExitStack() as stack:
        with suppress(OSError):
            # When somebody has it already, so much the better.
            stack.enter_context(socket.create_server(("localhost", 7071)))
        _, errors = stack.enter_context(serve(tmp_path, *flags))
        eventually(lambda: "health at" in errors.read_text(), START_S, "it serves")
        said = errors.read_text()
    found = re.search(r"health at\s+http://localhost:(\d+)/healthz/ready", said)
    assert found is not None
    assert found[1] != "7071"
    assert "management.port is taken" in said


def test_a_management_port_that_was_asked_for_is_had_or_named(
    kafka_broker: KafkaUnderTest, tmp_path: Path
) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--kafka", kafka_broker.bootstrap_servers, "--listen", "localhost:0"]
        with serve(tmp_path, *flags, "--set", f"management.port={port}") as (process, errors):
            assert process.wait(START_S) == 1
            assert f"localhost:{port}" in errors.read_text()


def test_sighup_does_not_end_a_service(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as process:
        os.kill(process.pid, signal.SIGHUP)
        eventually(lambda: "SIGHUP ignored" in process.log_tail(), START_S, "it says so")
        assert process.exit_code is None


@pytest.mark.parametrize("on_terminal", [False, True])
def test_the_end_of_a_terminal_ends_what_runs_on_it(
    monkeypatch: pytest.MonkeyPatch, on_terminal: bool
) -> None:
    stopped: list[None] = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: on_terminal)
    hung_up = on_hangup(lambda: stopped.append(None))
    # By then it is no terminal any more.
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    with capture_logs() as lines:
        hung_up()
    assert bool(stopped) is on_terminal
    assert "SIGHUP" in lines[0]["event"]
