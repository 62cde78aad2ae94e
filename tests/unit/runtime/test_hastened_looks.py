"""Looks at the store that links of unknown coordinators hasten: soon for one, few for many."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.errors import StoreUnavailableError
from sharecoord.runtime.fleet.watch import FleetWatch
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import Fleet, fleet_of
from tests.unit.runtime.worlds import now_s, world_with


def watched(fleet: Fleet) -> FleetWatch:
    watch = fleet.all["a"].watch
    assert watch is not None, "of a fleet"
    return watch


def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of all looks from now on."""
    found: list[float] = []
    read = MemoryStore.read_fleet

    def noted(store: MemoryStore) -> object:
        found.append(now_s())
        return read(store)

    monkeypatch.setattr(MemoryStore, "read_fleet", noted)
    return found


@virtual
async def test_a_link_of_an_unknown_coordinator_hastens_a_look() -> None:
    world = world_with(0)
    async with fleet_of(world, "a") as fleet:
        await asyncio.sleep(2.5)
        assert fleet.all["a"].fleet is not None
        store = MemoryStore(world.database, fleet=True)
        about = {"cluster_id": world.log.cluster, "address": "b:1", "version": "test"}
        store.open(coordinator_id="b", secret=b"secret", **about)
        asked_s = now_s()
        assert await watched(fleet).looked_anew()
        assert now_s() - asked_s < 0.1
        assert fleet.all["a"].fleet.secret_of("b") == b"secret"
        # It goes: its secret opens nothing any more.
        store.close()
        await watched(fleet).look()
        assert fleet.all["a"].fleet.secret_of("b") == b""


@virtual
async def test_many_links_hasten_one_look_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_of(world_with(0), "a") as fleet:
        times, waiting = looks(monkeypatch), []
        for _ in range(1_000):
            waiting.append(asyncio.ensure_future(watched(fleet).looked_anew()))
            await asyncio.sleep(0.01)
        assert all([await each for each in waiting])
    # Ten seconds: one look each second by itself, one that is hastened.
    assert 10 <= len(times) <= 22


@virtual
async def test_who_waits_hears_that_the_store_does_not_answer() -> None:
    world = world_with(0)
    async with fleet_of(world, "a") as fleet:
        await asyncio.sleep(1.5)
        store = fleet.all["a"].context.store
        assert isinstance(store, MemoryStore)
        store.fail_next(StoreUnavailableError("away"), method="read_fleet")
        assert not await watched(fleet).looked_anew()
        assert await watched(fleet).looked_anew()
