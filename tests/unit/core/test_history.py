"""Who had a record without finishing it: kept from failure to failure, nothing until the first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.states import ForceAction
from sharecoord.core.window.history import (
    MEMBERS_MAX,
    MORE_MEMBERS,
    History,
    after_failure,
    history_from_text,
    history_to_text,
)
from tests.unit.core.scene import ACCEPT, REJECT, RELEASE, RETURN, Scene


def history(scene: Scene, offset: int = 0) -> History | None:
    value = scene.at(offset)
    assert value is not None
    return value.history


def test_nothing_until_the_first_failure() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    assert history(scene) is None
    scene.acknowledge(ACCEPT, 0, 4)
    scene.acknowledge(RETURN, 5, 9)
    assert history(scene, 5) is None, "handed back unseen is no failure"


def test_members_in_the_order_of_their_first_failures_each_once() -> None:
    scene = Scene(dead_letter_topic="dead")
    scene.now = 5_678
    scene.acquire("ann", new=[(0, 0)])
    scene.acknowledge(RELEASE, 0, reason="boom")
    scene.acquire("bob")
    scene.pass_time(30_000)
    scene.acquire("ann")
    scene.acknowledge(RELEASE, 0)
    assert history(scene) == History(5_000, ("ann", "bob"), "boom")
    scene.acquire("eve")
    scene.acknowledge(REJECT, 0, member="eve", reason="no use")
    assert history(scene) == History(5_000, ("ann", "bob", "eve"), "no use")


def test_a_departed_member_and_an_operator_end_an_attempt_too() -> None:
    scene = Scene()
    scene.acquire("ann", new=[(0, 1)])
    scene.apply(scene.partition.decide_release_member(scene.now, "ann"))
    scene.acquire("bob")
    scene.apply(scene.partition.decide_force(scene.now, 0, 0, ForceAction.RELEASE))
    assert history(scene) == History(1_000, ("ann", "bob"))
    assert history(scene, 1) == History(1_000, ("ann",))


def test_what_failed_together_stays_one_range_with_one_value() -> None:
    scene = Scene()
    scene.acquire(new=[(0, 9)])
    for offset in range(10):
        scene.now += 10
        scene.acknowledge(RELEASE, offset)
    assert scene.states() == [(0, 9, "AVAILABLE", 1)]


def test_ten_members_are_named() -> None:
    found = None
    for number in range(15):
        found = after_failure(found, f"m{number}", number, None)
    names = tuple(f"m{number}" for number in range(MEMBERS_MAX))
    assert found == History(0, (*names, MORE_MEMBERS))
    assert after_failure(found, "m99", 99, None) is found


@given(
    st.builds(
        History,
        st.integers(-(10**12), 10**12),
        st.lists(st.text()).map(tuple),
        st.none() | st.text(min_size=1),
    ),
    st.integers(0, 2 * 10**12),
)
def test_the_store_gives_it_back(value: History, offset_ms: int) -> None:
    assert history_from_text(history_to_text(value, offset_ms), offset_ms) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "{}", '{"first_ms":"1","members":[],"error":null}'),
        *('{"first_ms":1,"members":[1],"error":null}', '{"first_ms":1,"members":[],"error":1}'),
        '{"first_ms":1,"members":"m","error":null}',
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"history|Expecting"):
        history_from_text(text)
