"""The demo as a user runs it, and the judge who says whether a record was lost."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from sharecoord.core.states import RecordState
from sharecoord.demo import main
from sharecoord.demo.judge import CoordinatorKill, Evidence, WorkerKill, judge
from sharecoord.demo.ledger import Entry, LedgerReader, LedgerWriter, Outcome, Tally, Verb
from sharecoord.demo.main import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_LOST, EXIT_OK
from sharecoord.demo.plan import DELIVERY_LIMIT, Kind, Order, Plan
from sharecoord.demo.screen import ACCEPTED, ACQUIRED, ARCHIVED, EMPTY, NEW, squeeze, states
from sharecoord.demo.window_view import WindowRange, WindowState
from sharecoord.demo.worker import verdict_on
from sharecoord.devenv.topics import Topics
from sharecoord.errors import InvalidConfigError
from tests.support import KafkaUnderTest, eventually

RECORDS, WORKERS, SEED = 600, 6, 7
END_TIMEOUT_S = 100.0
MARK = "DEMO_TEST_MARK"
ACCEPT, RELEASE, REJECT = Outcome.ACCEPT, Outcome.RELEASE, Outcome.REJECT


# -- the demo as a process ------------------------------------------------------------------------


@dataclass
class Demo:
    """A demo in a process of its own; its children carry the same mark in their environment."""

    process: subprocess.Popen[str]
    mark: str
    directory: Path

    def family(self) -> list[str]:
        """Every process of this demo that still runs."""
        found = []
        for each in psutil.process_iter():
            try:
                ours = each.environ().get(MARK) == self.mark
                if ours and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{each.pid} {' '.join(each.cmdline())}")
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
        return found

    def left_behind(self) -> list[str]:
        """Files of this demo that are still there."""
        return [path.name for path in self.directory.iterdir()]

    def read_until(self, text: str) -> None:
        """Waits for a line of the output."""
        assert self.process.stdout is not None, "piped"
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if text in line:
                return
        raise AssertionError(f"the demo ended without {text!r}:\n{''.join(seen)}")


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts a demo; whatever the test does, it is gone afterwards."""
    started: list[Demo] = []

    def start(*options: str) -> Demo:
        mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: mark, "TMPDIR": str(tmp_path)}
        command = [str(Path(sys.executable).with_name("sharecoord")), "demo", "--plain", *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        started.append(Demo(process, mark, tmp_path))
        return started[-1]

    yield start
    for demo in started:
        demo.process.kill()
        demo.process.communicate()


def figure(output: str, row: str) -> str:
    """The figure in a row of the summary."""
    found = re.search(rf"│ {re.escape(row)}[^│]*│ +([^│]*?) +│", output)
    assert found, f"no row {row!r} in:\n{output}"
    return found.group(1)


def test_the_demo_loses_nothing_and_says_so(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo("--records", str(RECORDS), "--workers", str(WORKERS), "--seed", str(SEED))
    output, _ = demo.process.communicate(timeout=END_TIMEOUT_S)
    assert demo.process.returncode == EXIT_OK, output
    kinds = [order.kind for order in Plan(RECORDS, WORKERS, SEED).orders()]
    poison, broken = kinds.count(Kind.POISON), kinds.count(Kind.BROKEN)
    again = figure(output, "processed more than once") if "more than once" in output else "0"
    processed = int(figure(output, "processed once")) + int(again)
    assert figure(output, "produced") == str(RECORDS)
    assert processed == RECORDS - poison - broken
    assert figure(output, "archived: failed") == str(poison)
    assert figure(output, "archived: refused") == str(broken)
    assert figure(output, "lost") == "0"
    assert int(figure(output, "redelivered")) >= poison + kinds.count(Kind.FLAKY)
    assert 1 / WORKERS < float(figure(output, "Jain's index")) <= 1
    assert re.search(rf"Worker w{WORKERS} was killed with -9 while it held [1-9]", output)
    assert re.search(r"deliveries went on \d+\.\d s after the kill, and of [1-9]", output)
    assert demo.family() == []
    assert demo.left_behind() == []


@pytest.mark.timeout(300)
def test_the_demo_ends_with_a_report_on_its_own_run(
    start_demo: Callable[..., Demo], tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = tmp_path_factory.mktemp("page") / "report.html"
    options = ("--records", "300", "--workers", "4", "--seed", str(SEED), "--report", str(page))
    demo = start_demo(*options)
    output, _ = demo.process.communicate(timeout=250)
    assert demo.process.returncode == EXIT_OK, output
    assert figure(output, "lost") == "0"
    assert f"Report: {page}" in output
    words = next(line for line in output.splitlines() if line.startswith("Group demo: "))
    text = page.read_text(encoding="utf-8")
    first = words.removeprefix("Group demo: ").split(";", maxsplit=1)[0]
    assert html.escape(first) in text
    # The killed worker's locks, and records that failed until their limit.
    assert "given up" in text
    assert "What each member got over time" in text
    assert demo.family() == []
    assert demo.left_behind() == []


def test_a_report_that_can_not_be_made_is_refused_before_the_demo(
    start_demo: Callable[..., Demo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    demo = start_demo("--report", "report.html")
    output, _ = demo.process.communicate(timeout=30)
    assert demo.process.returncode == EXIT_LOST, output
    assert "has no bin/java" in output
    assert "produced" not in output


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_ended_demo_leaves_no_process_and_no_file(
    start_demo: Callable[..., Demo], signum: signal.Signals
) -> None:
    demo = start_demo("--records", "200", "--workers", "2")
    demo.read_until("share ONE partition")
    demo.process.send_signal(signum)
    code = demo.process.wait(END_TIMEOUT_S)
    assert code == (EXIT_INTERRUPTED if signum is signal.SIGINT else -signum)
    eventually(lambda: demo.family() == [], 20.0, "every process is gone")
    eventually(lambda: demo.left_behind() == [], 20.0, "every file is gone")


def test_a_cluster_of_the_user_is_left_as_it_was(
    start_demo: Callable[..., Demo], kafka_broker: KafkaUnderTest, topics: Topics
) -> None:
    address = kafka_broker.bootstrap_servers
    demo = start_demo("--kafka", address, "--records", "200", "--workers", "3")
    output, _ = demo.process.communicate(timeout=END_TIMEOUT_S)
    assert demo.process.returncode == EXIT_OK, output
    assert figure(output, "lost") == "0"
    assert [name for name in topics.names() if name.startswith("sharecoord-demo")] == []


def test_a_kafka_that_does_not_answer_is_named(start_demo: Callable[..., Demo]) -> None:
    demo = start_demo("--kafka", "127.0.0.1:1", "--records", "100", "--workers", "2")
    output, _ = demo.process.communicate(timeout=END_TIMEOUT_S)
    assert demo.process.returncode == EXIT_FAILED
    assert "The demo could not be played" in output
    assert demo.left_behind() == []


@pytest.mark.parametrize(
    ("records", "workers", "named"),
    [(99, 2, "--records"), (3001, 2, "--records"), (100, 1, "--workers"), (200, 20, "--records")],
)
def test_what_can_not_be_played_is_refused(records: int, workers: int, named: str) -> None:
    with pytest.raises(InvalidConfigError, match=named):
        main.run(records=records, workers=workers)


def test_two_clusters_at_once_are_refused() -> None:
    with pytest.raises(InvalidConfigError, match="--kafka"):
        main.run(kafka="localhost:9092", real=True)


# -- the plan and the workers ---------------------------------------------------------------------


def test_a_seed_is_a_plan() -> None:
    orders = Plan(300, 2, 5).orders()
    assert orders == Plan(300, 2, 5).orders() != Plan(300, 2, 6).orders()
    assert [order.number for order in orders] == list(range(300))
    assert {order.kind for order in orders} == set(Kind)
    assert [Order.decode(order.encode()) for order in orders] == orders


def test_the_kind_of_a_record_decides_what_a_worker_says() -> None:
    def said(kind: Kind, failures: int = 0) -> list[Outcome]:
        return [verdict_on(Order(0, kind, failures), count)[0] for count in range(1, 4)]

    assert said(Kind.GOOD) == [ACCEPT, ACCEPT, ACCEPT]
    assert said(Kind.FLAKY, 2) == [RELEASE, RELEASE, ACCEPT]
    assert said(Kind.POISON) == [RELEASE, RELEASE, RELEASE]
    assert said(Kind.BROKEN) == [REJECT, REJECT, REJECT]
    assert said(Kind.POSTPONED) == [RELEASE, ACCEPT, ACCEPT]


# -- the ledger -----------------------------------------------------------------------------------


def test_a_ledger_is_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "w1"
    reader = LedgerReader(path)
    assert reader.read() == []
    writer = LedgerWriter(path, "w1")
    writer.write(Verb.JOINED)
    writer.write(Verb.GOT, 7, 2)
    assert [entry[1:] for entry in reader.read()] == [
        (Verb.JOINED, "w1", -1, 0, Outcome.NONE),
        (Verb.GOT, "w1", 7, 2, Outcome.NONE),
    ]
    with path.open("a") as torn:
        torn.write("1.0 did w1 7 2 acc")
    assert reader.read() == []
    with path.open("a") as torn:
        torn.write("ept\n")
    assert reader.read() == [Entry(1.0, Verb.DID, "w1", 7, 2, ACCEPT)]
    writer.close()


def test_the_tally_knows_what_is_in_whose_hands() -> None:
    tally = Tally()
    tally.add([got(1, "w1", 5), got(1, "w1", 6), did(2, "w1", 5, ACCEPT)])
    assert tally.in_hand["w1"] == {6: 1}
    assert tally.handled["w1"] == 1
    assert tally.accepted == {5}
    assert tally.highest_count == {5: 1, 6: 1}


# -- the judge ------------------------------------------------------------------------------------


def got(time_s: float, member: str, offset: int, count: int = 1) -> Entry:
    return Entry(time_s, Verb.GOT, member, offset, count, Outcome.NONE)


def did(time_s: float, member: str, offset: int, outcome: Outcome, count: int = 1) -> Entry:
    return Entry(time_s, Verb.DID, member, offset, count, outcome)


def confirmed(time_s: float, member: str, offset: int, outcome: Outcome, count: int = 1) -> Entry:
    return Entry(time_s, Verb.CONFIRMED, member, offset, count, outcome)


def life(
    member: str, offset: int, outcome: Outcome, at_s: float = 1.0, count: int = 1
) -> list[Entry]:
    """A delivery from beginning to end."""
    return [
        got(at_s, member, offset, count),
        did(at_s + 0.1, member, offset, outcome, count),
        confirmed(at_s + 0.2, member, offset, outcome, count),
    ]


def case(produced: int, entries: Sequence[Entry]) -> Evidence:
    """A demo of two workers in which nobody was killed."""
    return Evidence(
        produced=set(range(produced)),
        entries=entries,
        delivery_limit=DELIVERY_LIMIT,
        unfinished=0,
        stored_reasons={},
        members=["w1", "w2"],
    )


def worn_out(offset: int) -> list[Entry]:
    """A record that fails as often as it may."""
    return [
        entry
        for count in range(1, DELIVERY_LIMIT + 1)
        for entry in life("w1", offset, RELEASE, float(count), count)
    ]


def test_a_good_run_adds_up() -> None:
    flaky = [*life("w1", 3, RELEASE, 1.0, 1), *life("w2", 3, ACCEPT, 2.0, 2)]
    entries = [
        *life("w1", 0, ACCEPT),
        *life("w2", 1, ACCEPT),
        *life("w2", 2, REJECT),
        *flaky,
        *worn_out(4),
    ]
    evidence = replace(case(5, entries), stored_reasons={2: "REJECTED", 4: "DELIVERY_LIMIT"})
    verdict = judge(evidence)
    assert verdict.good
    assert verdict.faults == ()
    assert (verdict.produced, verdict.processed_once, verdict.redelivered) == (5, 3, 2)
    assert verdict.archived == {"DELIVERY_LIMIT": 1, "REJECTED": 1}
    assert (verdict.handled_least, verdict.handled_most) == (3, 7)
    assert verdict.jain == pytest.approx((3 + 7) ** 2 / (2 * (9 + 49)))


def test_a_record_that_no_ledger_knows_is_lost() -> None:
    verdict = judge(case(3, [*life("w1", 0, ACCEPT), *life("w2", 2, ACCEPT)]))
    assert verdict.lost == (1,)
    assert not verdict.good


def test_a_record_that_was_only_received_or_failed_is_lost() -> None:
    entries = [got(1, "w1", 0), *life("w2", 1, RELEASE), *life("w2", 2, ACCEPT)]
    assert judge(case(3, entries)).lost == (0, 1)


def test_archived_for_a_reason_that_no_worker_gave_is_lost_and_a_fault() -> None:
    evidence = replace(case(2, life("w1", 0, ACCEPT)), stored_reasons={1: "GAP"})
    verdict = judge(evidence)
    assert verdict.lost == (1,)
    assert "another reason" in verdict.faults[0]


def test_processed_and_archived_for_wear_is_no_fault_of_the_store() -> None:
    """The last allowed delivery was worked off, but its acknowledgement came too late."""
    entries = worn_out(0)[:-2]
    entries.append(did(9.0, "w1", 0, ACCEPT, DELIVERY_LIMIT))
    verdict = judge(replace(case(1, entries), stored_reasons={0: "DELIVERY_LIMIT"}))
    assert verdict.good
    assert (verdict.processed_once, verdict.archived) == (1, {})


@pytest.mark.parametrize("outcome", [ACCEPT, REJECT])
def test_a_delivery_after_a_confirmed_end_is_a_fault(outcome: Outcome) -> None:
    entries = [*life("w1", 0, outcome), *life("w2", 0, outcome, 2.0, 2)]
    verdict = judge(case(1, entries))
    assert "after an acknowledgement that was confirmed" in verdict.faults[0]
    assert not verdict.good


def overtaken(w2_finished_s: float) -> list[Entry]:
    """The lock of w1 ended, w2 got the record; then w1 was told that its ACCEPT is all right."""
    return [
        got(1.0, "w1", 0),
        got(6.0, "w2", 0, 2),
        did(6.1, "w1", 0, ACCEPT),
        did(w2_finished_s, "w2", 0, ACCEPT, 2),
        confirmed(6.5, "w1", 0, ACCEPT),
    ]


def test_a_late_worker_may_hear_that_the_record_is_finished_already() -> None:
    verdict = judge(case(1, overtaken(6.2)))
    assert verdict.good
    assert (verdict.processed_again, verdict.overtaken) == (1, 1)


def test_a_late_confirmation_that_nobody_else_earned_is_a_fault() -> None:
    """When w1 was confirmed, w2 was not through: both held a valid lock."""
    verdict = judge(case(1, overtaken(6.8)))
    assert "after an acknowledgement that was confirmed" in verdict.faults[0]


def test_a_third_delivery_after_a_late_confirmation_is_a_fault() -> None:
    verdict = judge(case(1, [*overtaken(6.2), got(7.0, "w1", 0, 3)]))
    assert "after an acknowledgement that was confirmed" in verdict.faults[0]


def test_processed_again_without_a_confirmation_is_no_fault() -> None:
    entries = [got(1, "w1", 0), did(2, "w1", 0, ACCEPT), *life("w2", 0, ACCEPT, 3.0, 2)]
    verdict = judge(case(1, entries))
    assert verdict.good
    assert (verdict.processed_once, verdict.processed_again) == (0, 1)


def test_one_delivery_in_two_hands_is_a_fault() -> None:
    entries = [got(1, "w1", 0), *life("w2", 0, ACCEPT, 2.0, 1)]
    assert "two workers" in judge(case(1, entries)).faults[0]


def test_a_delivery_beyond_the_limit_is_a_fault() -> None:
    entries = [*worn_out(0), got(9, "w1", 0, DELIVERY_LIMIT + 1)]
    assert "more than 5 times" in judge(case(1, entries)).faults[0]


def test_a_record_that_nobody_produced_is_a_fault() -> None:
    entries = [*life("w1", 0, ACCEPT), *life("w1", 9, ACCEPT)]
    assert "never produced (offsets 9)" in judge(case(1, entries)).faults[0]


def test_what_the_killed_worker_held_must_come_back_one_higher() -> None:
    kill = WorkerKill("w3", 2.0, {0: 1, 1: 1, 2: DELIVERY_LIMIT})
    held = [got(1, "w3", 0), got(1, "w3", 1)]
    last = [got(count, "w1", 2, count) for count in range(1, DELIVERY_LIMIT)]
    last.append(got(1.9, "w3", 2, DELIVERY_LIMIT))
    back = [*life("w1", 0, ACCEPT, 5.0, 2), *life("w2", 1, ACCEPT, 5.5, 2)]
    good = judge(replace(case(3, [*held, *last, *back]), worker_kill=kill))
    assert good.good
    assert good.archived == {"DELIVERY_LIMIT": 1}
    assert good.held_by_killed == 3
    assert good.redelivery_s == pytest.approx((3.0, 3.5))
    skipped = [*life("w1", 0, ACCEPT, 5.0, 3), *life("w2", 1, ACCEPT, 5.5, 2)]
    bad = judge(replace(case(3, [*held, *last, *skipped]), worker_kill=kill))
    assert "held by the killed worker" in bad.faults[0]
    assert "(offsets 0)" in bad.faults[0]


def test_the_last_delivery_may_die_unseen_with_the_killed_worker() -> None:
    entries = worn_out(0)[:-3]
    stored = replace(case(1, entries), stored_reasons={0: "DELIVERY_LIMIT"})
    killed = replace(stored, worker_kill=WorkerKill("w3", 9.0, {}))
    assert judge(killed).archived == {"DELIVERY_LIMIT": 1}
    assert judge(killed).good
    assert judge(stored).lost == (0,)
    assert judge(replace(killed, stored_reasons={})).lost == (0,)


def test_locks_over_the_crash_of_the_coordinator_are_counted() -> None:
    kill = CoordinatorKill(2.0, 4.0)
    entries = [
        *life("w1", 0, ACCEPT),
        got(1.5, "w1", 1),
        got(1.5, "w2", 2),
        did(2.5, "w1", 1, ACCEPT),
        confirmed(4.5, "w1", 1, ACCEPT),
        Entry(4.6, Verb.REFUSED, "w2", 2, 1, ACCEPT),
        *life("w2", 2, ACCEPT, 5.0, 2),
    ]
    verdict = judge(replace(case(3, entries), coordinator_kill=kill))
    assert (verdict.locks_at_kill, verdict.locks_kept) == (2, 1)
    assert verdict.outage_s == pytest.approx(3.0)


def test_a_lost_record_ends_the_demo_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Played:
        def __init__(self, *_: object) -> None:
            pass

        def play(self) -> Evidence:
            return case(3, [*life("w1", 0, ACCEPT), *life("w2", 2, ACCEPT)])

    monkeypatch.setattr(main, "Director", Played)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main.run(records=100, workers=2, plain=True) == EXIT_LOST
    output = capsys.readouterr().out
    assert figure(output, "lost") == "1"
    assert "LOST: offsets 1" in output
    (kept,) = tmp_path.iterdir()
    assert f"kept in {kept}" in output.replace("\n", "")


def test_an_unfinished_or_stalled_demo_is_not_good() -> None:
    evidence = replace(case(1, life("w1", 0, ACCEPT)), unfinished=2, stalled_in="the end")
    assert judge(evidence).faults == (
        "2 records were not finished at the end",
        "the demo came to a standstill at: the end",
    )


# -- the picture ----------------------------------------------------------------------------------


def test_the_strip_shows_each_record() -> None:
    ranges = (WindowRange(3, 4, RecordState.ACQUIRED, 1, delayed=False, reason=""),)
    cells = states(WindowState(2, 6, 2, ranges), {1: "REJECTED"}, log_end=7, records=8)
    assert cells == [ACCEPTED, ARCHIVED, ACCEPTED, ACQUIRED, ACQUIRED, ACCEPTED, NEW, EMPTY]
    assert squeeze(cells, 4) == [ARCHIVED, ACQUIRED, ACQUIRED, NEW]
    assert squeeze(cells, 100) == cells


def test_lag_is_what_is_not_finished() -> None:
    assert WindowState(10, 20, 4).lag(25) == 11
    assert WindowState().lag(0) == 0
