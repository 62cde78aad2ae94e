"""Health and metrics on a thread of their own."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sharecoord.errors import InvalidConfigError
from sharecoord.management.server import ManagementServer
from sharecoord.ports import EventFigures, ProducerFigures
from sharecoord.runtime.group.offsets_export import ExportFigures
from sharecoord.runtime.memory.use import MemoryFigures, MemoryLevel
from sharecoord.runtime.status.status import (
    ConnectionFigures,
    GroupFigures,
    PartitionFigures,
    Snapshot,
    StatusBoard,
)
from sharecoord.security.audit import AuditFigures
from sharecoord.security.quotas import Use


def get(port: int, path: str, address: str = "127.0.0.1") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


SNAPSHOT = Snapshot(
    ticked_at_s=float("inf"),
    serving=True,
    store_ok=False,
    kafka_ok=True,
    commits=7,
    groups=(
        GroupFigures(
            "g",
            members=2,
            members_paused=3,
            fairness=0.5,
            outbox_bytes=700,
            outbox_full=True,
            kept_bytes=90,
            paused=True,
            flood=True,
            blocked_keys=4,
            unused_settings=("share.ordering",),
        ),
    ),
    partitions=(
        PartitionFigures(
            group="g",
            topic="t",
            partition=0,
            acquired=1,
            due=2,
            delayed=0,
            lag=None,
            window_ranges=3,
            delivered=40,
            delivered_whole=25,
            settled=30,
            held_back=True,
            blocked=6,
            dead_letters=3,
            payloads_not_kept=5,
            dead_letters_waiting=2,
            dead_letters_failing=True,
            refused=True,
            paused=True,
        ),
    ),
    cache_bytes=0,
    exports=(
        ExportFigures("g", "sharecoord.g", ""),
        ExportFigures("h", "taken", "GROUP_NOT_EMPTY"),
    ),
    loops_down={"idle": True, "lease": False},
    loop_restarts={"idle": 3, "lease": 0},
    events=EventFigures(9, 2, 100),
    producers=ProducerFigures(is_running=False, is_down=True, restarts=4, waiting_bytes=70),
    audit=AuditFigures(50, 6, is_failing=True),
    files_refused={"tls.cert.file, tls.key.file": True, "security.rules.file": False},
    certificate_days={"tls.cert.file": 12.5},
    peer_links_refused=6,
    kafka_port=ConnectionFigures(open=12, refused=8),
    principals={"User:alice": Use(members=3, streams=2, refused=5)},
    memory=MemoryFigures(MemoryLevel.READS_STOPPED, 1_000, caches=800, ranges=55),
)

REFUSED = '{export_group="taken",group="h",reason="GROUP_NOT_EMPTY"}'
PLACE = '{group="g",partition="0",topic="t"}'
LINES = {
    f"sharecoord_delivered_records_total{PLACE} 40.0",
    f"sharecoord_delivered_whole_records_total{PLACE} 25.0",
    f"sharecoord_settled_records_total{PLACE} 30.0",
    f"sharecoord_held_back{PLACE} 1.0",
    f"sharecoord_dead_letters_total{PLACE} 3.0",
    f"sharecoord_payloads_not_kept_total{PLACE} 5.0",
    'sharecoord_kept_payload_bytes{group="g"} 90.0',
    f"sharecoord_dead_letters_waiting_records{PLACE} 2.0",
    f"sharecoord_dead_letters_failing{PLACE} 1.0",
    f"sharecoord_paused{PLACE} 1.0",
    f"sharecoord_changes_refused{PLACE} 1.0",
    'sharecoord_group_paused{group="g"} 1.0',
    'sharecoord_members_paused{group="g"} 3.0',
    'sharecoord_flood_breaker_open{group="g"} 1.0',
    'sharecoord_dead_letters_waiting_bytes{group="g"} 700.0',
    'sharecoord_dead_letters_full{group="g"} 1.0',
    'sharecoord_fairness_jain_ratio{group="g"} 0.5',
    f"sharecoord_due_records{PLACE} 2.0",
    f"sharecoord_parked_records{PLACE} 6.0",
    'sharecoord_blocked_keys{group="g"} 4.0',
    'sharecoord_memory_bytes{part="caches"} 800.0',
    'sharecoord_memory_bytes{part="ranges"} 55.0',
    "sharecoord_memory_limit_bytes 1000.0",
    "sharecoord_memory_level 1.0",
    'sharecoord_loop_down{loop="idle"} 1.0',
    'sharecoord_group_settings_not_in_force{group="g",setting="share.ordering"} 1.0',
    'sharecoord_loop_down{loop="lease"} 0.0',
    'sharecoord_loop_restarts_total{loop="idle"} 3.0',
    "sharecoord_events_written_rows_total 9.0",
    "sharecoord_events_lost_rows_total 2.0",
    "sharecoord_events_waiting_bytes 100.0",
    "sharecoord_producers_running 0.0",
    "sharecoord_producers_down 1.0",
    "sharecoord_producers_restarts_total 4.0",
    "sharecoord_producers_waiting_bytes 70.0",
    "sharecoord_audit_lines_written_total 50.0",
    "sharecoord_audit_lines_dropped_total 6.0",
    "sharecoord_audit_failing 1.0",
    "sharecoord_kafka_port_connections 12.0",
    "sharecoord_kafka_port_connections_refused_total 8.0",
    'sharecoord_file_refused{settings="tls.cert.file, tls.key.file"} 1.0',
    'sharecoord_file_refused{settings="security.rules.file"} 0.0',
    'sharecoord_certificate_days_left{setting="tls.cert.file"} 12.5',
    "sharecoord_peer_links_refused_total 6.0",
    'sharecoord_principal_members{principal="User:alice"} 3.0',
    'sharecoord_principal_streams{principal="User:alice"} 2.0',
    'sharecoord_principal_refused_total{principal="User:alice"} 5.0',
    'sharecoord_offsets_export_ok{export_group="sharecoord.g",group="g",reason=""} 1.0',
    f"sharecoord_offsets_export_ok{REFUSED} 0.0",
}


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_interfaces_are_those_of_both_families(host: str) -> None:
    server = ManagementServer(StatusBoard(), host=host, port=0)
    port = server.start()
    try:
        for address in ("127.0.0.1", "[::1]"):
            assert get(port, "/healthz/live", address)[0] == 503
    finally:
        server.stop()


def test_probes_follow_the_board_and_metrics_are_served() -> None:
    board = StatusBoard()
    board.dropped_lines = lambda: 3
    server = ManagementServer(board, host="127.0.0.1", port=0)
    port = server.start()
    try:
        assert get(port, "/healthz/live")[0] == 503
        board.latest = SNAPSHOT
        assert get(port, "/healthz/live") == (200, "ok\n")
        code, text = get(port, "/healthz/ready")
        assert code == 503
        assert "the store does not answer" in text
        # Not for want of producers.
        board.latest = replace(SNAPSHOT, store_ok=True)
        assert get(port, "/healthz/ready") == (200, "ok\n")
        board.short_of_files = lambda: "99 of 100 files are open"
        code, text = get(port, "/healthz/ready")
        assert (code, text) == (503, "not serving: 99 of 100 files are open\n")
        code, text = get(port, "/metrics")
        assert code == 200
        assert 'sharecoord_members{group="g"} 2.0' in text
        assert "sharecoord_log_lines_dropped_total 3.0" in text
        assert "sharecoord_commits_total 7.0" in text
        assert set(text.splitlines()) >= LINES
        assert f"sharecoord_lag_records{PLACE}" not in text
    finally:
        server.stop()


def test_the_default_port_gives_way_to_any_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as lines:
        port = taken.getsockname()[1]
        server = ManagementServer(StatusBoard(), host="127.0.0.1", port=port, or_any=True)
        found = server.start()
        try:
            assert found != port
            assert get(found, "/healthz/live")[0] == 503
        finally:
            server.stop()
    assert [(each["taken"], each["port"]) for each in lines] == [(port, found)]


def test_a_port_that_is_taken_is_named_with_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = ManagementServer(StatusBoard(), host="127.0.0.1", port=port)
        with pytest.raises(InvalidConfigError, match=f"127.0.0.1:{port}: Address already in use"):
            server.start()
    assert capsys.readouterr().err == ""
