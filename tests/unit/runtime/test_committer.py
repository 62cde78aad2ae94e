"""Group commit: what is released when, and what a failure costs whom."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable

import pytest

from sharecoord.core.changes import CommitBatch, CommitResult, PartitionCommit, PartitionHead
from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreFencedError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.runtime.kernel.committer import (
    RANGE_BYTES,
    CommitLimits,
    Committer,
)
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.harness import VirtualStoreCaller
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import until

LIMITS = CommitLimits(linger_ms=7, oldest_ms=600, pending_max_bytes=1 << 20)
LINGER_S = LIMITS.linger_ms / 1000


class FakeStore(MemoryStore):
    """Answers commits by a function."""

    def __init__(self, answer: Callable[[CommitBatch], CommitResult]) -> None:
        super().__init__()
        self.answer = answer
        self.batches: list[CommitBatch] = []

    def commit(self, batch: CommitBatch) -> CommitResult:
        self.batches.append(batch)
        return self.answer(batch)


class FakeActor:
    """Has something to commit, always."""

    def __init__(self, partition_id: int) -> None:
        self.partition_id = partition_id
        self.pending_ranges = 0
        self.generation = 0
        self.dropped: list[SharecoordError] = []
        self.alive = True

    def take_commit(self) -> PartitionCommit | None:
        if not self.alive:
            return None
        return PartitionCommit(self.partition_id, 1, 0, PartitionHead(0, 0, -1, 0, 0))

    def drop(self, error: SharecoordError) -> None:
        self.generation += 1
        self.dropped.append(error)


class FakeEffect:
    """Notes how it ended, and when."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number: int | None = None
        self.error: SharecoordError | None = None

    def release(self) -> None:
        assert self.number is None, "let go twice"
        self.number = next(self.numbers)

    def abort(self, error: SharecoordError) -> None:
        self.release()
        self.error = error


def ok(_: CommitBatch) -> CommitResult:
    return CommitResult(frozenset())


def failing(error: SharecoordError) -> Callable[[CommitBatch], CommitResult]:
    """Every commit fails so."""

    def fail(_: CommitBatch) -> CommitResult:
        raise error

    return fail


class Setup:
    def __init__(self, answer: Callable[[CommitBatch], CommitResult] = ok) -> None:
        self.store = FakeStore(answer)
        self.caller = VirtualStoreCaller()
        self.fatal: list[SharecoordError] = []
        loop = asyncio.get_running_loop()
        self.committer = Committer(
            self.store,
            self.caller,
            now_ms=lambda: int(loop.time() * 1000),
            on_fatal=self.fatal.append,
            limits=LIMITS,
        )

    def add(self, actor: FakeActor) -> FakeEffect:
        effect = FakeEffect()
        self.committer.add(actor, effect)
        return effect

    async def close(self) -> None:
        async with asyncio.timeout(60):
            await self.committer.close()


def waiting(
    answer: Callable[[CommitBatch], CommitResult] = ok,
) -> tuple[Setup, FakeActor, FakeEffect]:
    """One share-partition, and an effect that waits for its commit."""
    setup, actor = Setup(answer), FakeActor(1)
    return setup, actor, setup.add(actor)


@virtual
async def test_effects_go_in_order_and_only_after_their_commit() -> None:
    setup = Setup()
    effects = [setup.add(FakeActor(1)), setup.add(FakeActor(2))]
    await asyncio.sleep(0.0005)
    assert [e.number for e in effects] == [None, None]
    await setup.close()
    numbers = [e.number or 0 for e in effects]
    assert 0 < numbers[0] < numbers[1]
    assert [len(b.partitions) for b in setup.store.batches] == [2]


@virtual
async def test_each_effect_is_gone_before_the_next_one_is_released() -> None:
    """Else the records of all deliveries of a commit stay until the last one is a message."""

    class Second(FakeEffect):
        def release(self) -> None:
            super().release()
            assert first() is None

    setup = Setup()
    first = weakref.ref(setup.add(FakeActor(1)))
    second = Second()
    setup.committer.add(FakeActor(2), second)
    await setup.close()
    assert second.number is not None
    assert second.error is None


@virtual
async def test_changes_during_a_commit_go_with_the_next_one() -> None:
    setup = Setup()
    actor = FakeActor(1)
    effects = [setup.add(actor)]
    await asyncio.sleep(0.0005)
    effects.append(setup.add(actor))
    await asyncio.sleep(0.001)
    assert [e.number is not None for e in effects] == [True, False]
    await setup.close()
    assert effects[1].error is None
    assert len(setup.store.batches) == 2


@virtual
async def test_a_fenced_partition_pays_alone() -> None:
    setup = Setup(lambda batch: CommitResult(frozenset({1})))
    one, two = FakeActor(1), FakeActor(2)
    fenced, fine = setup.add(one), setup.add(two)
    await setup.close()
    assert isinstance(fenced.error, StoreFencedError)
    assert fenced.error.retriable
    assert fine.error is None
    assert len(one.dropped) == 1
    assert not two.dropped


@virtual
async def test_what_gathered_for_a_dropped_incarnation_is_never_released() -> None:
    """While a commit runs, its partition goes on; when the commit fails, all of that is void."""

    fail = failing(StoreOutcomeUnknownError("gone"))
    setup, actor, first = waiting(fail)
    await asyncio.sleep(0.0005)
    second = setup.add(actor)
    setup.store.answer = lambda batch: fail(batch) if len(setup.store.batches) == 1 else ok(batch)
    await setup.close()
    assert isinstance(first.error, StoreOutcomeUnknownError)
    assert isinstance(second.error, StoreUnavailableError)
    assert len(actor.dropped) == 1


@virtual
async def test_what_an_inactive_partition_had_decided_is_never_released() -> None:
    setup, actor, effect = waiting()
    actor.alive = False
    await setup.close()
    assert isinstance(effect.error, StoreUnavailableError)


@virtual
async def test_a_loaded_partition_is_not_dropped_for_its_predecessor() -> None:
    setup, actor, effect = waiting(failing(StoreOutcomeUnknownError("gone")))
    await asyncio.sleep(0.0005)
    actor.generation += 1
    await setup.close()
    assert effect.error is not None
    assert not actor.dropped


@virtual
async def test_an_unavailable_store_is_asked_again_then_given_up() -> None:
    setup, actor, effect = waiting(failing(StoreUnavailableError("away")))
    setup.committer.remove_member("g", "m", 1)
    await setup.committer.flush()
    assert isinstance(effect.error, StoreUnavailableError)
    assert len(setup.store.batches) > 10
    assert len(actor.dropped) == 1
    setup.store.answer = ok
    setup.add(actor)
    await setup.close()
    assert setup.store.batches[-1].members_removed == [("g", "m", 1)]


@virtual
async def test_a_store_that_comes_back_at_once_costs_nothing() -> None:
    def away_first(_: CommitBatch) -> CommitResult:
        if len(setup.store.batches) < 5:
            raise StoreUnavailableError("away")
        return CommitResult(frozenset())

    setup, actor, effect = waiting(away_first)
    await setup.close()
    assert effect.error is None
    assert not actor.dropped


@virtual
async def test_a_refused_row_costs_its_own_partition_only() -> None:
    def refuse(batch: CommitBatch) -> CommitResult:
        if any(c.partition_id == 2 for c in batch.partitions):
            raise InternalError("bad row")
        return CommitResult(frozenset())

    setup = Setup(refuse)
    actors = [FakeActor(number) for number in (3, 1, 2)]
    effects = [setup.add(actor) for actor in actors]
    setup.committer.remove_member("g", "m", 1)
    await setup.close()
    assert [len(a.dropped) for a in actors] == [0, 0, 1]
    assert [e.error is None for e in effects] == [True, True, False]
    assert setup.store.batches[-1].members_removed == [("g", "m", 1)]
    assert not setup.fatal


@virtual
async def test_a_store_that_can_not_be_trusted_ends_everything() -> None:
    setup = Setup(failing(StoreFatalError("I/O error")))
    effect = setup.add(FakeActor(1))
    await setup.close()
    assert [type(e) for e in setup.fatal] == [StoreFatalError]
    assert effect.number is None
    assert setup.committer.behind
    late = setup.add(FakeActor(2))
    await setup.close()
    assert late.number is None


@pytest.mark.parametrize("where", ["store", "take", "drop", "callback"])
@virtual
async def test_a_failure_that_nobody_foresaw_ends_the_process(where: str) -> None:
    def fail(*_: object) -> CommitResult:
        raise KeyError(where)

    def fenced(batch: CommitBatch) -> CommitResult:
        return CommitResult(frozenset(c.partition_id for c in batch.partitions))

    setup = Setup(fenced if where == "drop" else ok)
    if where == "store":
        setup.store.answer = fail
    actor = FakeActor(1)
    if where == "take":
        actor.take_commit = fail  # type: ignore[method-assign,assignment]
    elif where == "drop":
        actor.drop = fail  # type: ignore[method-assign,assignment]
    elif where == "callback":
        setup.committer.when_unblocked(fail)  # type: ignore[arg-type]
    effect = setup.add(actor)
    await setup.close()
    assert [type(e) for e in setup.fatal] == [InternalError]
    assert (effect.number is not None) == (where == "callback")


@virtual
async def test_an_effect_that_fails_harms_no_other() -> None:
    setup = Setup()
    bad, good = FakeEffect(), FakeEffect()
    bad.number = 0
    setup.committer.add_effect(bad)
    setup.committer.add_effect(good)
    await setup.close()
    assert good.number is not None
    assert not setup.fatal


@virtual
async def test_it_is_behind_while_the_oldest_change_waits_too_long() -> None:
    setup = Setup()
    setup.caller.delay_s = 2 * LIMITS.oldest_ms / 1000
    told: list[float] = []
    loop = asyncio.get_running_loop()
    setup.add(FakeActor(1))
    seen: list[bool] = []
    for wait_s in (LIMITS.oldest_ms / 1000 - 0.01, 0.02):
        await asyncio.sleep(wait_s)
        seen.append(setup.committer.behind)
    assert seen == [False, True]

    def note() -> None:
        told.append(loop.time())

    setup.committer.when_unblocked(note)
    setup.committer.when_unblocked(note)
    await setup.close()
    assert not setup.committer.behind
    assert told == [setup.caller.delay_s]


@virtual
async def test_an_abandoned_committer_lets_nothing_go() -> None:
    setup = Setup()
    effect = setup.add(FakeActor(1))
    await asyncio.sleep(0.0005)
    setup.committer.abandon()
    await asyncio.sleep(1)
    assert effect.number is None
    assert not setup.store.batches


@virtual
async def test_acquiring_waits_while_too_much_is_pending() -> None:
    setup, actor = Setup(), FakeActor(1)
    actor.pending_ranges = LIMITS.pending_max_bytes // RANGE_BYTES
    setup.add(actor)
    assert not setup.committer.behind
    actor.pending_ranges += 1
    assert setup.committer.behind
    await setup.committer.flush()
    assert not setup.committer.behind
    await setup.close()


@virtual
async def test_what_may_wait_waits_for_others_but_not_long() -> None:
    setup, loop = Setup(), asyncio.get_running_loop()
    one, two = FakeActor(1), FakeActor(2)
    alone = FakeEffect()
    began_s = loop.time()
    setup.committer.add(one, alone, may_wait=True)
    await until(lambda: alone.number, step_s=0.0005)
    assert LINGER_S <= loop.time() - began_s < LINGER_S + 0.005, "nobody came"

    patient = FakeEffect()
    began_s = loop.time()
    setup.committer.add(one, patient, may_wait=True)
    urgent = setup.add(two)
    await until(lambda: urgent.number, step_s=0.0005)
    assert loop.time() - began_s < LINGER_S
    assert patient.number, "it went along"
    assert [len(batch.partitions) for batch in setup.store.batches] == [1, 2]
    await asyncio.sleep(1)
    assert len(setup.store.batches) == 2, "and not once more"
    await setup.close()


@virtual
async def test_a_flush_does_not_wait_for_company() -> None:
    setup, loop = Setup(), asyncio.get_running_loop()
    patient = FakeEffect()
    setup.committer.add(FakeActor(1), patient, may_wait=True)
    began_s = loop.time()
    await setup.committer.flush()
    assert patient.number
    assert loop.time() - began_s < LINGER_S
    await setup.close()


@virtual
async def test_what_may_wait_while_a_commit_runs_goes_with_the_next() -> None:
    setup = Setup()
    setup.caller.delay_s = 0.02
    first = setup.add(FakeActor(1))
    await asyncio.sleep(0.001)
    patient = FakeEffect()
    setup.committer.add(FakeActor(2), patient, may_wait=True)
    await until(lambda: first.number, step_s=0.001)
    assert patient.number is None
    await setup.committer.flush()
    assert patient.number
    await setup.close()


class BrokenEffect(FakeEffect):
    """Fails when it is let go, as by a mistake of ours."""

    def release(self) -> None:
        raise ValueError("unforeseen")

    def abort(self, error: SharecoordError) -> None:
        self.error = error


@virtual
async def test_who_waits_for_an_effect_that_fails_is_told() -> None:
    setup = Setup()
    broken, actor = BrokenEffect(), FakeActor(1)
    setup.committer.add(actor, broken)
    after = setup.add(actor)
    await setup.close()
    assert isinstance(broken.error, InternalError)
    assert "it is stored, but what follows failed: ValueError('unforeseen')" in broken.error.message
    assert (after.error, setup.fatal, actor.dropped) == (None, [], [])
