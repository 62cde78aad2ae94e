"""The range map against a dict of offsets, with blocks small enough to split and vanish."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharecoord.core.window import range_map
from sharecoord.core.window.range_map import RangeMap


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Four ranges fill a block."""
    before = range_map.BLOCK_RANGES_MAX
    range_map.BLOCK_RANGES_MAX = 4
    yield
    range_map.BLOCK_RANGES_MAX = before


def ranges_of(model: dict[int, int]) -> list[tuple[int, int, int]]:
    """The model's ranges: every value is used for one range only."""
    found: list[tuple[int, int, int]] = []
    for offset, value in sorted(model.items()):
        if found and found[-1][1:] == (offset - 1, value):
            found[-1] = (found[-1][0], offset, value)
        else:
            found.append((offset, offset, value))
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equals_a_dict_of_offsets(data: st.DataObject) -> None:
    """Insert, split, shrink, remove, look up."""
    real: RangeMap[int] = RangeMap()
    model: dict[int, int] = {}
    for value in range(data.draw(st.integers(1, 40))):
        first = data.draw(st.integers(0, 60))
        last = first + data.draw(st.integers(0, 5))
        found = real.get(first)
        assert (found[2] if found else None) == model.get(first)
        overlapping = [*real.overlapping(first, last)]
        assert overlapping == [r for r in ranges_of(model) if r[0] <= last and r[1] >= first]
        inside = {at: model[at] for at in range(first, last + 1) if at in model}
        assert [*real.within(first, last)] == ranges_of(inside)
        some = {at: v for at, v in model.items() if data.draw(st.booleans())}
        assert real.pieces_of(sorted(some)) == ranges_of(some)
        if not overlapping:
            real.insert(first, last, value)
            model |= dict.fromkeys(range(first, last + 1), value)
        elif found is not None:
            start, end, _ = found
            kept = [at for at in range(start, end + 1) if data.draw(st.booleans())]
            pieces = [(at, at, 1_000 * (value + 1) + at) for at in kept]
            real.replace(start, pieces)
            for at in range(start, end + 1):
                del model[at]
            model |= {at: v for at, _, v in pieces}
        assert [*real] == ranges_of(model)
        assert len(real) == len(ranges_of(model))
        assert real.front() == (ranges_of(model)[0] if model else None)
        assert real.get(-1) is None
        assert [*real.overlapping(5, 4)] == []


def test_a_range_that_overlaps_its_left_neighbour_is_refused() -> None:
    real: RangeMap[int] = RangeMap()
    real.insert(0, 9, 1)
    with pytest.raises(AssertionError, match="overlaps"):
        real.insert(9, 12, 2)


def test_only_the_first_offset_of_a_range_names_it() -> None:
    real: RangeMap[int] = RangeMap()
    real.insert(0, 9, 1)
    with pytest.raises(AssertionError, match="no range starts at 4"):
        real.replace(4, ())


@settings(deadline=None)
@given(gaps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=30))
def test_a_map_that_was_filled_equals_one_that_has_grown(gaps: list[tuple[int, int]]) -> None:
    rows: list[tuple[int, int, int]] = []
    end = 0
    for gap, size in gaps:
        rows.append((end + gap, end + gap + size - 1, len(rows)))
        end += gap + size
    grown: RangeMap[int] = RangeMap()
    for row in rows:
        grown.insert(*row)
    filled: RangeMap[int] = RangeMap()
    filled.fill(*([row[at] for row in rows] for at in range(3)))
    for made in (grown, filled):
        assert [*made] == rows
        assert len(made) == len(rows)
        for first, last, value in rows:
            made.replace(first, [(at, at, -value) for at in range(first, last + 1)])
    assert [*grown] == [*filled]


@pytest.mark.parametrize(("firsts", "lasts"), [([0, 2], [2, 3]), ([5, 0], [6, 1])])
def test_a_map_is_not_filled_with_ranges_that_overlap(firsts: list[int], lasts: list[int]) -> None:
    with pytest.raises(AssertionError, match="overlap or are not in order"):
        RangeMap[int]().fill(firsts, lasts, [1, 2])
