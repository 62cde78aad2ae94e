"""The README is true: its worker runs, its commands exist, its files are there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest, eventually

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_worker_of_ten_lines_prints_records(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], topics: Topics, tmp_path: Path
) -> None:
    (worker,) = blocks("python")
    assert len(worker.strip().splitlines()) <= 10
    name = topic()
    topics.produce(name, [(None, b"hello %d" % i, None) for i in range(3)])
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as coordinator:
        program = worker.replace("localhost:7070", coordinator.address)
        assert program != worker
        path = tmp_path / "worker.py"
        path.write_text(program.replace('["orders"]', f'["{name}"]'), encoding="utf-8")
        log = tmp_path / "worker.log"
        process = GuardedProcess("worker", [sys.executable, "-u", str(path)], log_path=log)
        process.start()
        try:
            eventually(lambda: "hello 2" in process.log_tail(), 30, what="the worker's output")
        finally:
            process.stop(5)


@pytest.mark.parametrize("block", blocks("bash"))
def test_every_make_target_of_the_readme_exists(block: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([a-z-]+)", block, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert "make " in block or "sharecoord " in block


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
