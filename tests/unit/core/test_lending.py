"""How a gateway lends a member's credit to owners."""

from __future__ import annotations

from sharecoord.core.lending import HERE, Order, Purse


def lend(owner: str, total: int) -> Order:
    return Order(owner, total, recalls=False)


def recall(owner: str, total: int) -> Order:
    return Order(owner, total, recalls=True)


def test_while_nobody_is_hungry_everybody_keeps_an_equal_part() -> None:
    purse = Purse()
    assert sorted(purse.balance(30, [HERE, "a", "b"], ())) == [lend("a", 10), lend("b", 10)]
    assert purse.lent == 20
    assert purse.balance(30, [HERE, "a", "b"], ()) == []


def test_who_is_hungry_gets_everything_that_is_free() -> None:
    purse = Purse()
    assert purse.balance(10, [HERE, "a", "b"], {"b"}) == [lend("b", 10)]


def test_the_gateways_own_partitions_keep_their_part() -> None:
    purse = Purse()
    assert purse.balance(10, [HERE, "a"], {HERE, "a"}) == [lend("a", 5)]


def test_what_one_does_not_use_is_asked_back_for_another_that_is_hungry() -> None:
    purse = Purse()
    assert purse.balance(10, ["a", "b"], {"a"}) == [lend("a", 10)]
    assert purse.balance(10, ["a", "b"], {"b"}) == [recall("a", 10)]
    assert purse.balance(10, ["a", "b"], {"b"}) == []  # asked already, nothing free yet
    purse.delivered("a", 3)
    purse.returned("a", 4)  # one more is on its way
    assert purse.open("a") == 1
    assert purse.balance(7, ["a", "b"], {"b"}) == [lend("b", 6), recall("a", 4)]


def test_what_is_lent_is_asked_back_for_own_partitions_too() -> None:
    purse = Purse()
    assert purse.balance(4, [HERE, "a"], {"a"}) == [lend("a", 4)]
    assert purse.balance(4, [HERE, "a"], {HERE}) == [recall("a", 4)]


def test_a_member_that_takes_one_at_a_time_offers_it_to_each_in_turn() -> None:
    purse = Purse()
    served: list[str] = []
    for _ in range(6):
        (order,) = purse.balance(1, ["a", "b", "c"], ("a", "b", "c"))
        served.append(order.owner)
        purse.delivered(order.owner, 1)
    assert sorted(served) == ["a", "a", "b", "b", "c", "c"]


def test_a_member_without_room_lends_nothing_and_one_without_owners_neither() -> None:
    assert Purse().balance(0, ["a"], {"a"}) == []
    assert Purse().balance(-5, ["a"], {"a"}) == []
    assert Purse().balance(5, [], ()) == []


def test_a_broken_way_frees_what_was_lent() -> None:
    purse = Purse()
    purse.balance(10, ["a", "b"], {"a"})
    purse.forget("a")
    purse.forget("a")
    assert purse.lent == 0
    assert purse.balance(10, ["b"], {"b"}) == [lend("b", 10)]
