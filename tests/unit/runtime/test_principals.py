"""A member id belongs to the principal that joined with it, also after a restart."""

from __future__ import annotations

import pytest

from sharecoord.errors import UnauthorizedError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.security.principals import Caller, Identity, Mechanism, Principal
from sharecoord.security.quotas import Quotas, Use
from sharecoord.security.rules import Quota
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import fleet_of, joined_fleet
from tests.unit.runtime.worlds import world_with
from tests.world import TOPICS, World

ALICE = Caller(Identity(Principal("User:alice"), Mechanism.TOKEN))
BOB = Caller(Identity(Principal("User:bob"), Mechanism.TOKEN))
NOBODY = Caller()


async def restarted(world: World, coordinator: Coordinator) -> Coordinator:
    """The coordinator after a kill -9: it knows its members from the store alone."""
    await world.kill(coordinator)
    again = await world.start()
    assert [each.caller for each in again.groups["g"].sessions.values()] == [None]
    return again


async def refused(world: World, coordinator: Coordinator, caller: Caller) -> None:
    """A caller does not get in under the id of the member `m`."""
    before = world.members["m"]
    with pytest.raises(UnauthorizedError, match="is another principal's; make a member_id"):
        await world.joined(coordinator, "m", caller=caller)
    world.members["m"] = before


@virtual
async def test_nobody_takes_over_a_member_of_before_a_restart() -> None:
    world = world_with(1)
    coordinator = await world.start()
    member = await world.joined(coordinator, caller=ALICE)
    again = await restarted(world, coordinator)
    for stranger in (BOB, NOBODY):
        await refused(world, again, stranger)
    await member.join(again, "g", TOPICS, caller=ALICE)
    assert member.joined_session.principal == "User:alice"
    await refused(world, again, BOB)
    await again.close()


@virtual
async def test_nobody_calls_for_a_member_of_before_a_restart() -> None:
    world = world_with(1)
    coordinator = await world.start()
    await world.joined(coordinator, caller=ALICE)
    again = await restarted(world, coordinator)
    admission, guard = again.groups.admission, again.context.guard
    quotas = guard.quotas = Quotas(lambda _: Quota(members=2), lambda: 0.0)
    session = again.groups["g"].sessions["m"]
    with pytest.raises(UnauthorizedError, match="is another principal's"):
        admission.recognise(session, BOB, "Fetch")
    assert (session.caller, quotas.uses()) == (None, {})
    admission.recognise(session, ALICE, "Fetch")
    assert session.caller is ALICE
    assert quotas.uses() == {"User:alice": Use(members=1, streams=0, refused=0)}
    await again.close()


@virtual
async def test_a_member_of_nobody_is_of_the_first_who_comes() -> None:
    """One of before credentials were asked for."""
    world = world_with(1)
    coordinator = await world.start()
    member = await world.joined(coordinator, caller=NOBODY)
    again = await restarted(world, coordinator)
    again.groups.admission.recognise(again.groups["g"].sessions["m"], ALICE, "Fetch")
    await refused(world, again, BOB)
    await member.join(again, "g", TOPICS, caller=ALICE)
    (row,) = world.database.members.values()
    assert row.principal == "User:alice"
    await again.close()


@virtual
async def test_nobody_takes_over_a_member_at_another_coordinator() -> None:
    world = world_with(1, partitions=8)
    async with joined_fleet(world, "a", "b", caller=ALICE) as (fleet, member):
        session = fleet.all["b"].groups["g"].sessions["m"]
        assert (session.gateway, session.caller, session.principal) == ("a", None, "User:alice")
        await refused(world, fleet.all["b"], BOB)
        await member.join(fleet.all["b"], "g", TOPICS, caller=ALICE)


@virtual
async def test_nobody_takes_over_a_member_of_which_only_the_store_knows_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator that serves no share-partition of the group is told of no member."""
    world = world_with(1)
    async with joined_fleet(world, "a", "b", at="b", caller=ALICE) as (fleet, member):
        other = fleet.all["a"]
        assert "g" not in other.groups
        told: list[tuple[object, ...]] = []
        monkeypatch.setattr(other.context.guard, "tell", lambda *what, **_: told.append(what))
        await refused(world, other, BOB)
        assert [what[:2] for what in told] == [(BOB, "Join")]
        assert not member.ended
        await member.join(other, "g", TOPICS, caller=ALICE)


@virtual
async def test_nobody_takes_over_a_member_of_a_dead_coordinator() -> None:
    world = world_with(1, partitions=8)
    async with fleet_of(world, "a") as fleet:
        member = await world.joined(fleet.all["a"], caller=ALICE)
        await fleet.kill("a")
        await fleet.add("b")
        assert fleet.all["b"].groups["g"].sessions["m"].caller is None
        await refused(world, fleet.all["b"], BOB)
        await member.join(fleet.all["b"], "g", TOPICS, caller=ALICE)


@virtual
async def test_the_maker_of_a_group_becomes_known_with_its_next_change() -> None:
    """An operator's group has settings first; another coordinator may see it before its maker."""
    world = world_with(0)
    async with fleet_of(world, "a", "b") as fleet:
        store = fleet.all["a"].context.store
        store.save_group_config("made", set_values={}, deleted=[])
        group = await fleet.all["b"].groups.open("made")
        assert group.made_by == ""
        store.ensure_group("made", made_by="User:alice")
        store.save_group_config("made", set_values={}, deleted=[])
        await fleet.see()
        assert group.made_by == "User:alice"
