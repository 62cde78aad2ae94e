"""The model against a broker: figures that were measured, one model, no constant per row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharecoord.analytics.whatif.grid import predict
from sharecoord.analytics.whatif.kafka import KafkaWorld
from sharecoord.analytics.whatif.model import build, simulate
from sharecoord.analytics.whatif.settings import Dispatch, Scenario

# Consumers, work in ms, max.poll.records; measured busy, Jain, starved (one partition, 1 kB,
# producer batches of 16 records, 20 s). The model was made with the first four; the last two were
# measured afterwards, with Kafka 4.3.1.
ROWS = [
    pytest.param((10, 5, None), (0.38, 0.986, 0), id="10 consumers"),
    pytest.param((20, 5, None), (0.19, 0.933, 0), id="20 consumers"),
    pytest.param((50, 5, None), (0.076, 0.443, 23), id="50 consumers"),
    pytest.param((50, 5, 20), (0.925, 1.0, 0), id="50 consumers, tuned"),
    pytest.param((50, 20, 100), (0.353, 0.936, 0), id="50 consumers, polls of 100"),
    pytest.param((50, 20, 50), (0.614, 0.997, 0), id="50 consumers, polls of 50"),
]


@pytest.mark.parametrize(("given", "measured"), ROWS)
def test_the_model_gives_what_a_broker_gave(
    given: tuple[int, float, int | None], measured: tuple[float, float, int]
) -> None:
    consumers, work_ms, records = given
    busy, jain, starved = measured
    scenario = Scenario(
        dispatch=Dispatch.BATCH_OPTIMIZED,
        consumers=consumers,
        work_ms=work_ms,
        max_poll_records=records,
        batch_records=16,
    )
    # What is never starved of records does not depend on chance, and costs more to simulate.
    (found,) = predict([scenario], 1 if records == 20 else None, processes=1)
    assert found.busy == pytest.approx(busy, rel=0.15)
    assert found.rate == pytest.approx(consumers * busy / work_ms * 1000, rel=0.15)
    assert found.jain == pytest.approx(jain, rel=0.15)
    assert found.starved == pytest.approx(starved, abs=3)


@pytest.mark.parametrize(("poll_records", "batch_records", "held"), [(1, 16, 16), (500, 1, 500)])
def test_one_worker_that_stands_still_stops_the_group(
    poll_records: int, batch_records: int, held: int
) -> None:
    """Measured: the others get 1,984 records, or 1,500 when it holds 500; then nothing moves."""
    scenario = Scenario(
        dispatch=Dispatch.BATCH_OPTIMIZED,
        consumers=10,
        slow_members=1,
        slow_work_ms=3_600_000,
        max_poll_records=poll_records,
        batch_records=batch_records,
        lock_duration_ms=3_600_000,
        warm_up_s=60,
    )
    world = build(scenario)
    world.clock.run(world.meter.end_ms)
    window = world.shares[0].window
    assert (window.acquired, window.finished) == (held, 2_000 - held)
    assert world.meter.records == [0] * 10


def test_locks_that_end_set_the_group_free() -> None:
    scenario = Scenario(
        dispatch=Dispatch.BATCH_OPTIMIZED,
        consumers=10,
        slow_members=1,
        slow_work_ms=3_600_000,
        lock_duration_ms=5_000,
        warm_up_s=0,
        seconds=30,
    )
    found = simulate(scenario)
    assert 464 <= found.expired <= 512
    assert (found.starved, found.fewest) == (1, 0)
    stuck = simulate(replace(scenario, lock_duration_ms=3_600_000))
    assert found.rate > 5 * stuck.rate


def test_record_limit_is_strict_and_whole_batches_are_not() -> None:
    taken: dict[Dispatch, set[int]] = {}
    for dispatch in (Dispatch.RECORD_LIMIT, Dispatch.BATCH_OPTIMIZED):
        scenario = Scenario(
            dispatch=dispatch, consumers=3, max_poll_records=20, warm_up_s=0, seconds=2
        )
        world = build(scenario)
        assert isinstance(world, KafkaWorld)
        sizes = taken[dispatch] = set()
        work = world.work

        def counted(member, pieces, sizes=sizes, work=work):  # type: ignore[no-untyped-def]
            sizes.add(sum(piece.records for piece in pieces))
            return work(member, pieces)

        world.work = counted  # type: ignore[method-assign]
        world.clock.run(world.meter.end_ms)
    assert taken == {Dispatch.RECORD_LIMIT: {20}, Dispatch.BATCH_OPTIMIZED: {32}}


def test_a_fetch_waits_its_time_and_is_served_by_what_arrives() -> None:
    """Nothing is there at first: fetches come back empty and go out again."""
    scenario = Scenario(
        dispatch=Dispatch.BATCH_OPTIMIZED, consumers=5, rate=50, warm_up_s=0, seconds=20
    )
    found = simulate(scenario)
    assert found.rate == pytest.approx(50, rel=0.02)
    assert found.dwell_p99_ms is not None
    assert found.dwell_p99_ms < 20


def test_members_that_are_fewer_than_partitions_share_none() -> None:
    scenario = Scenario(
        dispatch=Dispatch.BATCH_OPTIMIZED, consumers=2, partitions=5, warm_up_s=0, seconds=10
    )
    world = build(scenario)
    world.clock.run(world.meter.end_ms)
    holders = [set(share.window.held) for share in world.shares]
    assert all(len(held) <= 1 for held in holders)
    assert all(share.window.end_offset > 0 for share in world.shares)
