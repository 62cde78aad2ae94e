"""A member's credit, lent to owners whose answers are late: never exceeded, never stuck."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.fleet.lending import HERE, CreditChange, LentCredit

OWNERS = (HERE, "a", "b", "c")
REMOTE = OWNERS[1:]


class World:
    """A gateway with one member, and owners at the end of slow, ordered ways."""

    def __init__(self, credit: int) -> None:
        self.lent_credit = LentCredit()
        self.credit = credit
        self.taken = 0
        self.holds = 0
        self.backlog = dict.fromkeys(OWNERS, 0)
        self.told: dict[str, deque[CreditChange]] = {owner: deque() for owner in REMOTE}
        self.said: dict[str, deque[tuple[str, int]]] = {owner: deque() for owner in REMOTE}
        self.may = dict.fromkeys(REMOTE, 0)
        self.sent = dict.fromkeys(REMOTE, 0)

    @property
    def room(self) -> int:
        return self.credit - self.holds

    def hungry(self) -> set[str]:
        more = {each for each in REMOTE if self.backlog[each] > self.may[each] - self.sent[each]}
        return more | ({HERE} if self.backlog[HERE] else set())

    def balance(self) -> None:
        for order in self.lent_credit.balance(self.room, OWNERS, self.hungry()):
            self.told[order.owner].append(order)
        self.check()

    def serve_here(self) -> None:
        count = min(self.backlog[HERE], max(0, self.room - self.lent_credit.lent))
        self.backlog[HERE] -= count
        self.holds += count
        self.check()

    def serve(self, owner: str) -> None:
        """An owner hears one message and delivers what it may."""
        if self.told[owner]:
            order = self.told[owner].popleft()
            if order.recalls:
                self.may[owner] = self.sent[owner]
                self.said[owner].append(("returned", self.sent[owner]))
            else:
                self.may[owner] = order.records_total
        count = min(self.backlog[owner], self.may[owner] - self.sent[owner])
        assert count >= 0
        if count:
            self.backlog[owner] -= count
            self.sent[owner] += count
            self.said[owner].append(("delivered", count))

    def hear(self, owner: str) -> None:
        """The gateway hears one message."""
        if self.said[owner]:
            what, number = self.said[owner].popleft()
            if what == "returned":
                self.lent_credit.returned(owner, number)
            else:
                self.lent_credit.delivered(owner, number)
                self.holds += number
        self.check()

    def check(self) -> None:
        on_the_way = sum(n for said in self.said.values() for what, n in said if what[0] == "d")
        assert self.holds + on_the_way <= self.credit
        assert self.holds + self.lent_credit.lent <= self.credit
        assert all(self.lent_credit.open(owner) >= 0 for owner in REMOTE)

    def step(self, what: int, owner: str, number: int) -> None:
        if what == 0:
            self.backlog[owner] += number
        elif what == 1:
            self.holds -= min(number, self.holds)
        elif what == 2:
            self.balance()
        elif owner == HERE:
            self.serve_here()
        elif what == 3:
            self.serve(owner)
        else:
            self.hear(owner)


STEP = st.tuples(st.integers(0, 4), st.sampled_from(OWNERS), st.sampled_from([1, 2, 5, 1000]))


@given(st.sampled_from([1, 2, 3, 4, 7, 500]), st.lists(STEP, max_size=80))
def test_credit_is_never_exceeded_and_every_record_comes(
    credit: int, steps: list[tuple[int, str, int]]
) -> None:
    world = World(credit)
    for step in steps:
        world.step(*step)
    rounds = 0
    while any(world.backlog.values()):
        rounds += 1
        assert rounds < 12 * (20 + 80 * 1000 // credit), "an owner waits for ever"
        world.holds = 0
        world.balance()
        world.serve_here()
        for owner in REMOTE:
            world.serve(owner)
            world.hear(owner)
