"""The number of groups is limited: whoever would make one more is told how to go on."""

from __future__ import annotations

import pytest

from sharecoord.errors import LimitExceededError
from sharecoord.runtime.kernel.context import Limits
from tests.unit.admin.support import Bench, virtual
from tests.unit.admin.test_reset import LATEST

SETTING = {"share.session.timeout.ms": "50000"}


def groups(at: Bench) -> set[str]:
    return {row.group_id for row in at.world.store.load_groups()}


@virtual
async def test_a_join_that_would_make_one_group_too_many_is_refused(at: Bench) -> None:
    at.coordinator.context.limits = Limits(groups_max=2)
    await at.member("m1", "one")
    await at.member("m2", "two")
    with pytest.raises(LimitExceededError, match=r"'three'.*raise limits\.groups\.max") as raised:
        await at.member("m3", "three")
    assert raised.value.retriable
    assert groups(at) == {"one", "two"}
    await at.member("m4", "two")


@virtual
async def test_neither_a_setting_nor_a_reset_makes_one_group_too_many(at: Bench) -> None:
    at.coordinator.context.limits = Limits(groups_max=1)
    await at.member("m1", "one")
    with pytest.raises(LimitExceededError, match=r"limits\.groups\.max"):
        await at.admin.alter_group_configs("two", SETTING, [])
    with pytest.raises(LimitExceededError, match=r"limits\.groups\.max"):
        await at.reset(LATEST, orders=())
    assert groups(at) == {"one"}
    await at.admin.alter_group_configs("one", SETTING, [])
