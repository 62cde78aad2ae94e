"""Tables of times, producer batches, what lies in the measured time: by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.analytics.whatif.work import (
    ServiceTimes,
    Stretch,
    measured_arrivals,
    measured_times,
    service_times,
    steady_arrivals,
)
from sharecoord.analytics.whatif.world import Failures, HandedRange, Log, Member, Meter, Share
from sharecoord.core.partition.decisions import AcquiredRange
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import InvalidConfigError


def piece(first: int, last: int, log: Log | None = None, handed_ms: float = 0.0) -> HandedRange:
    share = Share(0, log or Log(16, 0, ""), PartitionSettings(), {})
    return HandedRange(share, AcquiredRange(first, last, 1, 7, 30_000), handed_ms)


@given(
    st.lists(st.integers(1, 1_000), min_size=1, max_size=20),
    st.integers(0, 200),
)
def test_a_table_goes_on_after_its_end(times: list[int], record: int) -> None:
    table = ServiceTimes([float(time) for time in times])
    expected = sum(itertools.islice(itertools.cycle(times), record))
    assert table.until(record) == pytest.approx(expected)
    assert table.done_by(expected + 0.5) == record


@pytest.mark.parametrize("text", ["uniform", "lognormal", "lognormal:0.5", "constant"])
def test_distributions_have_the_mean_that_was_asked_for(text: str) -> None:
    table = service_times(text, 20.0, 1)
    assert table.until(8_192) / 8_192 == pytest.approx(20, rel=0.05)


@pytest.mark.parametrize(
    "text", ["normal", "lognormal:0", "lognormal:x", "uniform:2", "lognormal:4"]
)
def test_another_distribution_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="--work-distribution"):
        service_times(text, 20.0, 1)


def test_measured_times_keep_their_weights() -> None:
    table = measured_times([(10.0, 3), (50.0, 1)], "1")
    assert table.until(8_192) / 8_192 == pytest.approx(20, rel=0.05)


def test_a_stretch_counts_whole_records() -> None:
    stretch = Stretch(ServiceTimes([10.0, 30.0]), 1, 3, 100.0, 1.5)
    # 45, 15 and 45 ms from 100 ms on.
    assert stretch.ends_ms == pytest.approx(205)
    assert [stretch.done_by(at) for at in (0, 144.9, 145.1, 160.1, 204.9, 205.1, 999)] == [
        *(0, 0, 1, 2, 2, 3, 3)
    ]


def test_only_what_lies_in_the_measured_time_counts() -> None:
    meter = Meter(100.0, 200.0, [0, 0])
    member = Member(0, "a", ServiceTimes([10.0]))
    meter.works(member, member.begin(8, 55.0, 0.0), [piece(0, 7)])
    # Ends at 65, ..., 135: four lie in it, and 35 ms of the work.
    assert (meter.records, meter.busy_ms) == ([4, 0], pytest.approx(35))
    meter.works(member, member.begin(4, 185.0, 0.0), [piece(8, 11)])
    assert (meter.records, meter.busy_ms) == ([5, 0], pytest.approx(50))
    meter.works(member, member.begin(4, 300.0, 0.0), [piece(12, 15)])
    meter.works(member, member.begin(4, 10.0, 0.0), [piece(16, 19)])
    assert meter.records == [5, 0]


def test_overhead_is_time_but_no_work() -> None:
    meter = Meter(0.0, 1_000.0, [0])
    member = Member(0, "a", ServiceTimes([10.0]))
    stretch = member.begin(10, 0.0, 2.0)
    meter.works(member, stretch, [piece(0, 9)])
    assert stretch.ends_ms == pytest.approx(120)
    assert (meter.records, meter.busy_ms) == ([10], pytest.approx(100))


def test_waiting_is_from_arrival_or_else_from_the_hand_out() -> None:
    log = Log(16, 0, "")
    log.append(1, 40.0)
    meter = Meter(0.0, 1_000.0, [0])
    member = Member(0, "a", ServiceTimes([10.0]))
    meter.works(member, member.begin(1, 100.0, 0.0), [piece(0, 0, log, handed_ms=90.0)])
    assert meter.dwell_ms(50) == pytest.approx(60, rel=0.02)
    backlog = Meter(0.0, 1_000.0, [0])
    backlog.works(member, member.begin(1, 100.0, 0.0), [piece(0, 0, handed_ms=90.0)])
    assert backlog.dwell_ms(99) == pytest.approx(10, rel=0.02)
    assert Meter(0.0, 1.0, [0]).dwell_ms(50) is None


def test_producer_batches_are_small_at_low_rates() -> None:
    assert list(itertools.islice(steady_arrivals(10, 16), 2)) == [(100.0, 1), (200.0, 1)]
    assert next(steady_arrivals(2_000, 16)) == (5.0, 10)
    assert next(steady_arrivals(100_000, 16)) == (pytest.approx(0.16), 16)


def test_measured_seconds_arrive_whole_and_within_themselves() -> None:
    found = list(measured_arrivals({2: 40, -1: 7, 0: 3}, 16))
    assert found[:2] == [(0.0, 7), (500.0, 3)]
    assert sum(records for at_ms, records in found if 2_000 <= at_ms < 3_000) == 40
    assert [at_ms for at_ms, _ in found] == sorted(at_ms for at_ms, _ in found)
    assert max(records for _, records in found) == 16


def test_a_log_knows_batches_and_times() -> None:
    log = Log(16, 0, "")
    log.append(20, 5.0)
    log.append(10, 9.0)
    assert [log.came_ms(offset) for offset in (0, 19, 20)] == [5.0, 5.0, 9.0]
    assert [log.batch_end(offset) for offset in (0, 15, 16, 29)] == [15, 15, 19, 29]
    assert log.keys_of(0, 3) is None
    backlog = Log(16, 0, "")
    backlog.fill()
    assert [backlog.batch_end(offset) for offset in (0, 15, 16)] == [15, 15, 31]
    assert backlog.came_ms(5) is None


def test_keys_of_a_record_are_always_the_same() -> None:
    log = Log(16, 5, "seed")
    whole = log.keys_of(0, 1_023)
    log.keys_of(5_000, 5_001)
    part = log.keys_of(100, 120)
    assert whole is not None
    assert part is not None
    assert part.hashes == whole.slice(100, 120)
    assert len({whole.at(offset) for offset in range(1_024)}) == 5


def test_acknowledgements_cover_every_record_once() -> None:
    failures = Failures(0.3, 1)
    pieces = [piece(0, 99), piece(500, 699)]
    said = failures.acknowledge(pieces)
    assert len(said) == 2
    for each, ranges in zip(pieces, said.values(), strict=True):
        assert [r.first for r in ranges[1:]] == [r.last + 1 for r in ranges[:-1]]
        assert (ranges[0].first, ranges[-1].last) == (each.range.first, each.range.last)
    failed = sum(r.type is AcknowledgeType.RELEASE for rs in said.values() for r in rs)
    assert 60 < failed < 120


@pytest.mark.parametrize(("ratio", "failed"), [(0.0, 0), (1.0, 10)])
def test_nothing_and_everything_can_fail(ratio: float, failed: int) -> None:
    (ranges,) = Failures(ratio, 1).acknowledge([piece(0, 9)]).values()
    assert sum(r.type is AcknowledgeType.RELEASE for r in ranges) == failed
