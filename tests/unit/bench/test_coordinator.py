"""What a coordinator under measurement says of itself."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from sharecoord_sdk.admin import AdminError

from sharecoord.bench import coordinator
from sharecoord.bench.coordinator import Counters, JoinWatch, MeasuredCoordinator, read_metrics
from sharecoord.bench.errors import BenchError

METRICS = """\
# HELP sharecoord_commits_total Group commits to the store.
# TYPE sharecoord_commits_total counter
sharecoord_commits_total 120.0
sharecoord_delivered_records_total{group="g {x}",partition="0",topic="t"} 3000.0
sharecoord_delivered_records_total{group="g",partition="1",topic="t"} 1e3
sharecoord_settled_records_total{group="g",partition="0",topic="t"} 2000.0

"""


@contextmanager
def serving(status: int, body: str) -> Iterator[int]:
    """An HTTP server with one answer; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/metrics"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *_: Any) -> None:  # noqa: A002 - as the base class
            """Silent."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def at_port(tmp_path: Path, port: int) -> MeasuredCoordinator:
    found = MeasuredCoordinator("h:1", tmp_path)
    found._port = port
    return found


def test_samples_of_a_name_are_added_up() -> None:
    assert read_metrics(METRICS) == {
        "sharecoord_commits_total": 120,
        "sharecoord_delivered_records_total": 4000,
        "sharecoord_settled_records_total": 2000,
    }


def test_counters_come_from_the_metrics(tmp_path: Path) -> None:
    with serving(200, METRICS) as port:
        counters = at_port(tmp_path, port).counters()
    assert counters == Counters(120, 4000, 2000)
    assert counters.commits_per_1000 == 60
    later = Counters(150, 9000, 3000).since(counters)
    assert later == Counters(30, 5000, 1000)
    assert Counters(5, 9, 0).commits_per_1000 is None


def test_a_coordinator_that_has_done_nothing_yet_counts_nothing(tmp_path: Path) -> None:
    with serving(200, "") as port:
        assert at_port(tmp_path, port).counters() == Counters(0, 0, 0)


def test_metrics_that_do_not_come_are_an_error(tmp_path: Path) -> None:
    with serving(500, "broken") as port:
        measured = at_port(tmp_path, port)
        with pytest.raises(BenchError, match="/metrics answers 500: broken"):
            measured.counters()
    with pytest.raises(BenchError, match="/metrics does not answer"):
        measured.counters()


def test_it_is_quiet_and_its_metrics_are_where_they_are_looked_for(tmp_path: Path) -> None:
    measured = MeasuredCoordinator("h:1", tmp_path, settings={"group.share.x": "1"})
    settings = yaml.safe_load((tmp_path / "coordinator.yaml").read_text(encoding="utf-8"))
    assert settings["management.port"] == measured._port > 0
    assert settings["management.host"] == "127.0.0.1"
    assert settings["log.level"] == "warning"
    assert settings["group.share.x"] == "1"


COORDINATOR: Any = SimpleNamespace(address="h:1", rss_mb=100.0)


class Admin:
    """Members join one by one with each look."""

    calls = 0
    closed = False
    error: AdminError | None = None

    def __init__(self, config: dict[str, str]) -> None:
        assert config == {"bootstrap.servers": "h:1"}

    def describe_groups(self, names: list[str], *, members: bool, offsets: bool) -> list[Any]:
        assert (names, members, offsets) == (["g"], False, False)
        if self.error is not None:
            raise self.error
        self.calls += 1
        return [SimpleNamespace(member_count=self.calls - 1)]

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that stands still, and no connection."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(coordinator, "AdminClient", Admin)
    monkeypatch.setattr(
        coordinator,
        "time",
        SimpleNamespace(monotonic=lambda: now.s, monotonic_ns=lambda: round(now.s * 1e9)),
    )
    return now


def test_a_group_is_joined_when_all_its_members_are_there(clock: SimpleNamespace) -> None:
    watch = JoinWatch(COORDINATOR, "g", 2)
    assert not watch.look()  # one member
    assert not watch.look()  # asked a moment ago
    before = watch.joined_ns
    assert before is None
    clock.s += 0.05
    assert watch.look()
    assert (watch.joined_ns, watch.rss_mb) == (100_050_000_000, 100.0)
    clock.s += 9
    assert watch.look()
    assert watch.joined_ns == 100_050_000_000
    admin: Any = watch._admin
    assert admin.calls == 3  # the first one opened the connection
    watch.close()
    assert admin.closed


@pytest.mark.parametrize(("answer_s", "pause_s"), [(0.1, 1.9), (3.0, 2.0)])
def test_looking_takes_a_twentieth_of_the_time_but_is_never_late(
    clock: SimpleNamespace, answer_s: float, pause_s: float
) -> None:
    watch = JoinWatch(COORDINATOR, "g", 99)
    slow: Any = watch._admin
    quick = slow.describe_groups

    def describe(*arguments: Any, **more: Any) -> list[Any]:
        clock.s += answer_s
        found: list[Any] = quick(*arguments, **more)
        return found

    slow.describe_groups = describe
    watch.look()
    before = slow.calls
    clock.s += pause_s - 0.05
    watch.look()
    assert slow.calls == before
    clock.s += 0.1
    watch.look()
    assert slow.calls == before + 1


def test_no_answer_while_many_join_means_not_yet(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = JoinWatch(COORDINATOR, "g", 1)
    with monkeypatch.context() as busy:
        busy.setattr(Admin, "error", AdminError("cancelled"))
        assert not watch.look()
    clock.s += 1
    assert watch.look()


def test_a_coordinator_that_does_not_describe_is_an_error(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admin, "error", AdminError("no answer"))
    with pytest.raises(BenchError, match="does not describe g: no answer"):
        JoinWatch(COORDINATOR, "g", 1)
