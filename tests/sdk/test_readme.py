"""The page on the package index is true: its programs run, its keys, names and defaults exist."""

from __future__ import annotations

import inspect
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sharecoord_sdk
from sharecoord_sdk import AcknowledgeType, Messages, ShareConsumer, Worker
from sharecoord_sdk._core.config_table import SETTINGS, read_inapplicable, read_refused
from sharecoord_sdk._worker.demand import PREFETCH_S
from sharecoord_sdk.admin import AdminError

from tests.sdk.fake_coordinator import Ack, FakeCoordinator, FakeStream, make_batch
from tests.support import eventually

README = (Path(sharecoord_sdk.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SYNC, ASYNC, WORKER, EXPLICIT, WHOLE, *TESTING = BLOCKS
ADDRESS = '"localhost:7070"'


@contextmanager
def running(
    program: str,
    coordinator: FakeCoordinator,
    *,
    topics: tuple[str, ...] = ("orders",),
    end: str = "KeyboardInterrupt",
) -> Iterator[FakeStream]:
    """Runs a program of the page against a coordinator until Ctrl-C."""
    assert program.count(ADDRESS) == 1
    code = program.replace(ADDRESS, repr(coordinator.address))
    process = subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stream = coordinator.stream()
        assert tuple(stream.join.topics) == topics
        assert stream.join.group_id == "orders-workers"
        yield stream
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert end in errors if end else not errors, "nothing but Ctrl-C ends it"
        eventually(lambda: stream.requests[-1].leave, 10.0, "the leave has arrived")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_compiles_and_imports_public_names_only(block: str) -> None:
    compile(block, "README.md", "exec")
    imports = re.findall(r"^from (sharecoord_sdk\S*) import (.+)$", block, re.MULTILINE)
    assert imports
    for module, names in imports:
        public = __import__(module, fromlist=["__all__"]).__all__
        assert set(names.split(", ")) <= set(public)


def test_the_first_worker_has_ten_lines_at_most() -> None:
    assert len(SYNC.strip().splitlines()) <= 10


@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["sync", "async"])
def test_the_workers_take_and_accept(program: str, coordinator: FakeCoordinator) -> None:
    with running(program, coordinator) as stream:
        stream.send(make_batch([b"a", b"b"], topic="orders"))
        assert stream.wait_acks(1) == [Ack("orders", 0, 0, 1, "ACCEPT", 1)]


def test_the_worker_with_handlers_says_each_word(coordinator: FakeCoordinator) -> None:
    with running(WORKER, coordinator, topics=("orders", "invoices"), end="") as stream:
        stream.send(
            make_batch([b"order", b"busy", b"unreadable"], topic="orders", token=3),
            make_batch([b"1", b"2"], topic="invoices", token=4),
        )
        assert sorted(stream.wait_acks(4), key=lambda ack: (ack.topic, ack.first)) == [
            Ack("invoices", 0, 0, 1, "ACCEPT", 4),
            Ack("orders", 0, 0, 0, "ACCEPT", 3),
            Ack("orders", 0, 1, 1, "RELEASE", 3, 5000),
            Ack("orders", 0, 2, 2, "REJECT", 3, 0, "not an order"),
        ]


def test_keywords_and_defaults_of_the_worker_are_those_of_the_page() -> None:
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(Worker.__init__).parameters.items()
    }
    assert "`renew_max_s` (an hour)" in README
    assert defaults["renew_max_s"] == 3600
    assert "`drain_timeout_s` (30 s)" in README
    assert defaults["drain_timeout_s"] == 30
    assert "works off in 200 ms" in README
    assert PREFETCH_S == 0.2
    for key in re.findall(r"`([a-z.]+\.[a-z.]+)`", refused_by_worker()):
        with pytest.raises(ValueError, match=re.escape(key)):
            Worker({"group.id": "g", key: 1})


def refused_by_worker() -> str:
    """The sentence of the page that names what a worker refuses."""
    (line,) = re.findall(r"^\* One handler per topic\.(.*)$", README, re.MULTILINE)
    return str(line)


def test_the_explicit_worker_says_each_word(coordinator: FakeCoordinator) -> None:
    with running(EXPLICIT, coordinator) as stream:
        values = [b"order", b"busy", b"unreadable", b"early"]
        stream.send(make_batch(values, topic="orders", token=3))
        assert stream.wait_acks(4) == [
            Ack("orders", 0, 0, 0, "ACCEPT", 3),
            Ack("orders", 0, 1, 1, "RELEASE", 3, 5000, "the shop does not answer"),
            Ack("orders", 0, 2, 2, "REJECT", 3, 0, "not an order"),
            Ack("orders", 0, 3, 3, "RENEW", 3),
        ]
        # The renewed one comes back by a later poll, and is still too early.
        again = stream.wait_acks(5)[4]
        assert (again.first, again.kind) == (3, "RENEW")


def test_the_worker_of_whole_polls_says_each_word(coordinator: FakeCoordinator) -> None:
    with running(WHOLE, coordinator) as stream:
        stream.send(make_batch([b'{"id": 1}'] * 3, topic="orders", token=3))
        assert stream.wait_acks(1) == [Ack("orders", 0, 0, 2, "ACCEPT", 3)]
        stream.send(make_batch([b"{}", b"bad", b"{}"], topic="orders", base=3, token=4))
        accepted, rejected, last = stream.wait_acks(4)[1:]
        assert (accepted.first, accepted.last, accepted.kind) == (3, 3, "ACCEPT")
        assert (rejected.first, rejected.last, rejected.kind) == (4, 4, "REJECT")
        assert rejected.reason.startswith("Expecting value")
        assert (last.first, last.last, last.kind) == (5, 5, "ACCEPT")


def test_the_tests_of_handlers_hold() -> None:
    assert len(TESTING) == 2
    for program in TESTING:
        names: dict[str, object] = {}
        exec(program, names)
        assert callable(names["run_handler"])


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_keys_and_defaults_are_those_of_the_table_of_settings() -> None:
    checked = 0
    for keys, default, _ in rows("Configuration"):
        for key in re.findall(r"`([a-z._]+)`", keys):
            setting = SETTINGS[key]
            assert setting.is_used, key
            assert setting.read not in (read_inapplicable, read_refused), key
            if default.startswith("`") and "," not in default:
                assert str(setting.default) == default.strip("`"), key
                checked += 1
            elif "," not in default:
                assert setting.default is None, key
    assert checked >= 10


def test_types_exceptions_and_methods_exist() -> None:
    kinds = [cells[0].strip("`") for cells in rows("Each record by itself")]
    assert kinds == [kind.name for kind in AcknowledgeType]
    for cells in rows("Errors"):
        for name in re.findall(r"`(\w+)`", cells[0]):
            assert hasattr(sharecoord_sdk, name) or name in ("ValueError", "TypeError"), name
    for name in ("values", "keys", "offsets"):
        assert f"`{name}()`" in README
        assert callable(getattr(Messages, name))
    for name in ("pause", "resume", "acquisition_lock_timeout_ms", "commit_async"):
        assert f"`{name}" in README
        assert callable(getattr(ShareConsumer, name))
    assert issubclass(AdminError, Exception)


def test_what_the_page_says_of_the_twin_is_so() -> None:
    twin = pytest.importorskip("confluent_kafka")
    lacks = ("pause", "resume", "acquisition_lock_timeout_ms", "wakeup")
    assert not any(hasattr(twin.ShareConsumer, name) for name in lacks)
    assert not hasattr(twin.AcknowledgeType, "RENEW")


def test_the_page_stands_alone() -> None:
    """On the package index there is nothing beside it."""
    assert re.findall(r"\]\((?!https?:)[^)]*\)", README) == []
