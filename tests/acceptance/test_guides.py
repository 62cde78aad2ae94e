"""The examples of the guides run and print what the guides say."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import GuardedProcess
from tests.support import KafkaUnderTest, eventually

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example_of(guide: str) -> str:
    """The only program of a guide."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(program)


def test_delay(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    program, said = example_of("delay.md"), (DOCS / "delay.md").read_text(encoding="utf-8")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as coordinator:
        for old, new in {
            "localhost:7070": coordinator.address,
            "localhost:9092": kafka_broker.bootstrap_servers,
            '"reminders"': f'"{topic()}"',
        }.items():
            assert old in program
            program = program.replace(old, new)
        path, log = tmp_path / "example.py", tmp_path / "example.log"
        path.write_text(program, encoding="utf-8")
        process = GuardedProcess("example", [sys.executable, "-u", str(path)], log_path=log)
        process.start()
        try:
            eventually(lambda: process.exit_code is not None, 60, what="the end of the example")
            assert process.exit_code == 0, process.log_tail()
        finally:
            process.stop(5)
    printed = [line for line in log.read_text(encoding="utf-8").splitlines() if "delivery" in line]
    assert len(printed) == 4
    plain = " ".join(said.split())
    for line in printed:
        assert f"`{line}`" in plain, "the guide does not say so"
    assert printed[0] == "say hello - delivery 1"
    assert printed[-1] == "pay the bill - delivery 1"
