"""The gateway's book of what a member holds, against a dictionary of offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.fleet.held_book import HeldBook

LAST = 40
Range = tuple[int, int]


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    first = draw(st.integers(0, LAST))
    return first, draw(st.integers(first, LAST))


STEPS = st.lists(st.tuples(st.booleans(), ranges(), st.integers(1, 3)), max_size=40)


@given(STEPS)
def test_the_book_is_what_was_received_and_not_settled(
    steps: list[tuple[bool, Range, int]],
) -> None:
    book, model = HeldBook(), dict[int, int]()
    for receives, (first, last), token in steps:
        offsets = range(first, last + 1)
        if receives:
            book.put(first, last, token, 0)
            model.update(dict.fromkeys(offsets, token))
        else:
            book.settled(first, last, token)
            model = {o: t for o, t in model.items() if o not in offsets or t != token}
        held = book.held()
        assert book.records == len(model)
        assert {o: h.lock_token for h in held for o in range(h.first, h.last + 1)} == model
        assert held == sorted(held)
