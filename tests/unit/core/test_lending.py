"""How a gateway lends a member's credit to owners."""

from __future__ import annotations

from sharecoord.core.fleet.lending import HERE, CreditChange, LentCredit


def lend(owner: str, total: int) -> CreditChange:
    return CreditChange(owner, total, recalls=False)


def recall(owner: str, total: int) -> CreditChange:
    return CreditChange(owner, total, recalls=True)


def test_while_nobody_is_hungry_everybody_keeps_an_equal_part() -> None:
    lent_credit = LentCredit()
    assert sorted(lent_credit.balance(30, [HERE, "a", "b"], ())) == [lend("a", 10), lend("b", 10)]
    assert lent_credit.lent == 20
    assert lent_credit.balance(30, [HERE, "a", "b"], ()) == []


def test_who_is_hungry_gets_everything_that_is_free() -> None:
    lent_credit = LentCredit()
    assert lent_credit.balance(10, [HERE, "a", "b"], {"b"}) == [lend("b", 10)]


def test_the_gateways_own_partitions_keep_their_part() -> None:
    lent_credit = LentCredit()
    assert lent_credit.balance(10, [HERE, "a"], {HERE, "a"}) == [lend("a", 5)]


def test_what_one_does_not_use_is_asked_back_for_another_that_is_hungry() -> None:
    lent_credit = LentCredit()
    assert lent_credit.balance(10, ["a", "b"], {"a"}) == [lend("a", 10)]
    assert lent_credit.balance(10, ["a", "b"], {"b"}) == [recall("a", 10)]
    assert lent_credit.balance(10, ["a", "b"], {"b"}) == []  # asked already, nothing free yet
    lent_credit.delivered("a", 3)
    lent_credit.returned("a", 4)  # one more is on its way
    assert lent_credit.open("a") == 1
    assert lent_credit.balance(7, ["a", "b"], {"b"}) == [lend("b", 6), recall("a", 4)]


def test_what_is_lent_is_asked_back_for_own_partitions_too() -> None:
    lent_credit = LentCredit()
    assert lent_credit.balance(4, [HERE, "a"], {"a"}) == [lend("a", 4)]
    assert lent_credit.balance(4, [HERE, "a"], {HERE}) == [recall("a", 4)]


def test_a_member_that_takes_one_at_a_time_offers_it_to_each_in_turn() -> None:
    lent_credit = LentCredit()
    served: list[str] = []
    for _ in range(6):
        (order,) = lent_credit.balance(1, ["a", "b", "c"], ("a", "b", "c"))
        served.append(order.owner)
        lent_credit.delivered(order.owner, 1)
    assert sorted(served) == ["a", "a", "b", "b", "c", "c"]


def test_a_member_without_room_lends_nothing_and_one_without_owners_neither() -> None:
    assert LentCredit().balance(0, ["a"], {"a"}) == []
    assert LentCredit().balance(-5, ["a"], {"a"}) == []
    assert LentCredit().balance(5, [], ()) == []


def test_a_broken_way_frees_what_was_lent() -> None:
    lent_credit = LentCredit()
    lent_credit.balance(10, ["a", "b"], {"a"})
    lent_credit.forget("a")
    lent_credit.forget("a")
    assert lent_credit.lent == 0
    assert lent_credit.balance(10, ["b"], {"b"}) == [lend("b", 10)]


def test_room_that_is_left_to_grow_is_not_lent_and_nobody_is_asked_for_it() -> None:
    lent_credit = LentCredit()
    assert lent_credit.balance(3, ["a", "b"], {"a"}, lends=False) == []
    assert lent_credit.lent == 0
    assert lent_credit.balance(8, ["a", "b"], {"a"}) == [lend("a", 8)]
    # What another owner needs is asked for all the same.
    assert lent_credit.balance(8, ["a", "b"], {"b"}, lends=False) == [recall("a", 8)]
