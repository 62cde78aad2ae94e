"""What must hold in every simulation, and what this project's dispatch gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sharecoord.analytics.whatif.model import Measured, build, simulate, spread
from sharecoord.analytics.whatif.settings import Dispatch, Scenario
from sharecoord.analytics.whatif.world import Member, Piece, World
from sharecoord.core.states import Ordering
from sharecoord.testing._invariants import check_partition
from tests.invariants import check_chains

SCENARIOS = [
    pytest.param({}, id="fair"),
    pytest.param({"failure_ratio": 0.1}, id="fair, failures"),
    pytest.param({"record_locks": 100}, id="fair, small window"),
    pytest.param({"ordering": Ordering.KEY, "keys": 30, "failure_ratio": 0.05}, id="fair, keys"),
    pytest.param({"rate": 700.0, "partitions": 3}, id="fair, arrivals"),
    pytest.param({"dispatch": Dispatch.BATCH_OPTIMIZED}, id="batch_optimized"),
    pytest.param(
        {"dispatch": Dispatch.BATCH_OPTIMIZED, "failure_ratio": 0.1, "max_poll_records": 30},
        id="batch_optimized, failures",
    ),
    pytest.param(
        {"dispatch": Dispatch.RECORD_LIMIT, "partitions": 3, "max_poll_records": 70},
        id="record_limit, partitions",
    ),
    pytest.param(
        {"slow_members": 3, "slow_work_ms": 900.0, "lock_duration_ms": 1_000}, id="fair, timeouts"
    ),
    pytest.param(
        {
            "dispatch": Dispatch.BATCH_OPTIMIZED,
            "slow_members": 3,
            "slow_work_ms": 900.0,
            "lock_duration_ms": 1_000,
            "max_poll_records": 20,
        },
        id="batch_optimized, timeouts",
    ),
]


def world_of(**given: Any) -> World:
    common = {"consumers": 12, "warm_up_s": 0, "seconds": 4}
    return build(Scenario(**{**common, **given}))


def handled_by(world: World) -> list[tuple[int, int, int]]:
    """Will hold (partition, first, last) of everything that members begin to work on."""
    handled: list[tuple[int, int, int]] = []
    work = world.work

    def noted(member: Member, pieces: Sequence[Piece]) -> float:
        handled.extend((p.share.number, p.range.first, p.range.last) for p in pieces)
        return work(member, pieces)

    world.work = noted  # type: ignore[method-assign]
    return handled


@pytest.mark.parametrize("given", SCENARIOS)
def test_states_windows_and_holders_fit_at_any_time(given: dict[str, Any]) -> None:
    world = world_of(**given)
    scenario = Scenario(**{**given, "consumers": 12})
    kafka = scenario.dispatch is not Dispatch.FAIR
    for step in range(1, 41):
        world.clock.run(step * 100.0)
        for share in world.shares:
            window = share.window
            check_partition(share.partition)
            if scenario.ordering is Ordering.KEY:
                check_chains(share.partition)
            limit = share.partition.settings.record_locks_max
            if kafka:
                # Soft by less than a producer batch.
                assert window.end_offset - window.start_offset < limit + scenario.producer_batch
            # With order what waits for its key does not count (design 5.4).
            assert window.acquired + share.partition.ready < limit + scenario.producer_batch
            assert window.end_offset <= share.log.end_offset
        held = sum(share.window.acquired for share in world.shares)
        assert sum(world.held.values()) == held
    assert sum(world.meter.records) > 0


@pytest.mark.parametrize("dispatch", list(Dispatch))
@pytest.mark.parametrize("partitions", [1, 3])
def test_no_record_is_handled_twice(dispatch: Dispatch, partitions: int) -> None:
    world = world_of(dispatch=dispatch, partitions=partitions, max_poll_records=50)
    handled = handled_by(world)
    world.clock.run(4_000)
    offsets = [
        (partition, offset)
        for partition, first, last in handled
        for offset in range(first, last + 1)
    ]
    assert len(offsets) == len(set(offsets)) > 1_000


def test_what_fails_comes_again_and_what_succeeds_does_not() -> None:
    world = world_of(failure_ratio=0.2, consumers=5)
    handled = handled_by(world)
    world.clock.run(4_000)
    seen: dict[int, int] = {}
    for _, first, last in handled:
        for offset in range(first, last + 1):
            seen[offset] = seen.get(offset, 0) + 1
    again = sum(count > 1 for count in seen.values()) / len(seen)
    assert again == pytest.approx(0.2, abs=0.04)
    assert max(seen.values()) <= world.shares[0].partition.settings.delivery_limit


@pytest.mark.parametrize("dispatch", list(Dispatch))
def test_the_same_seed_gives_the_same_result(dispatch: Dispatch) -> None:
    scenario = Scenario(
        dispatch=dispatch,
        work_distribution="lognormal",
        failure_ratio=0.02,
        seconds=5,
        warm_up_s=1,
        seed=7,
    )
    assert simulate(scenario) == simulate(scenario)
    other = Scenario(**{**scenario.to_json(), "seed": 8})
    assert simulate(other).figures() != simulate(scenario).figures()


def test_fifty_untuned_workers_are_busy_and_equal() -> None:
    found = simulate(Scenario(consumers=50, work_ms=5))
    assert found.jain >= 0.99
    assert found.busy >= 0.95
    assert found.starved == 0


def test_slow_members_hoard_nothing() -> None:
    world = world_of(slow_members=4, slow_work_ms=500.0, seconds=20)
    world.clock.run(3_000)
    for step in range(20):
        world.clock.run(3_000 + step * 100.0)
        assert max(world.held.get(f"member-{number}", 0) for number in range(4)) <= 2


def test_partition_order_lets_one_member_work_at_a_time() -> None:
    found = simulate(Scenario(consumers=5, ordering=Ordering.PARTITION, seconds=10))
    assert found.rate == pytest.approx(1000 / 5.12, rel=0.1)


def test_what_arrives_is_worked_off_at_its_rate_and_soon() -> None:
    found = simulate(Scenario(consumers=20, rate=1_000, seconds=10))
    assert found.rate == pytest.approx(1_000, rel=0.01)
    assert found.dwell_p99_ms is not None
    assert found.dwell_p99_ms < 25
    assert found.jain > 0.95


def test_measured_arrivals_and_times_stand_in_for_assumed_ones() -> None:
    measured = Measured(
        arrivals=[{-1: 100, **dict.fromkeys(range(10), 50)}],
        service=[[(10.0, 1)], [(30.0, 1)]],
    )
    scenario = Scenario(consumers=2, seconds=10, warm_up_s=0)
    found = simulate(scenario, measured)
    # 100 records/s and 33 records/s work off 60 records/s on average: both are busy at first.
    assert found.rate == pytest.approx(60, rel=0.03)
    assert found.most / found.fewest == pytest.approx(3, rel=0.5)
    given = simulate(Scenario(consumers=2, rate=20, seconds=10, warm_up_s=0), measured)
    assert given.rate == pytest.approx(20, rel=0.05)


def test_measured_arrivals_are_spread_over_other_partitions() -> None:
    arrivals = [{0: 5, 1: 4}, {-1: 7, 1: 3}]
    assert spread(arrivals, 2) is arrivals
    found = spread(arrivals, 3)
    assert [sum(each[second] for each in found) for second in (-1, 0, 1)] == [7, 5, 7]
    assert all(2 <= each[-1] <= 3 for each in found)
    given = simulate(
        Scenario(consumers=3, partitions=5, seconds=10, warm_up_s=0),
        Measured(arrivals=[dict.fromkeys(range(10), 100)], service=[[(5.0, 1)]]),
    )
    assert given.rate == pytest.approx(100, rel=0.03)


def test_a_slow_consumer_more_than_was_measured_uses_the_measured_times_again() -> None:
    measured = Measured(service=[[(10.0, 1)], [(20.0, 1)]])
    found = simulate(Scenario(consumers=4, seconds=10), measured)
    assert found.rate == pytest.approx(2 * (100 + 50), rel=0.06)
