"""Mistakes that somebody could make in what makes a fleet of coordinators; see `mutations`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from sharecoord.core.changes import (
    JoinRefusal,
    MemberRow,
)
from sharecoord.core.fleet.lending import CreditChange, LentCredit, Loan
from sharecoord.core.fleet.peering import Lend, LockBooks, MemberDown, Returned, Settled
from sharecoord.runtime.fleet import hand_over, owner
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.fleet.gateway import Gateway, OwnerLink
from sharecoord.runtime.fleet.owner import GatewayLink
from sharecoord.runtime.group import loading, lock_books
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.shared_order import SharedOrder
from sharecoord.runtime.member.session import Away, Session
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.store.memory.store import MemoryStore

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def on(owner: Any, name: str, wrong: Any) -> Patch:
    """Puts a mistake in the place of a function."""
    return lambda: mock.patch.object(owner, name, wrong)


def _nothing(*_: Any, **__: Any) -> None:
    """Not done at all."""


async def _nothing_async(*_: Any, **__: Any) -> None:
    """Not done at all."""


def _served_before_compared(group: GroupActor, actor: PartitionActor) -> None:
    """Members may receive from the first moment; the books are compared when they come."""
    _compare_all(group, actor)
    for session in group.sessions.values():
        session.comparison.done.add(actor.key.place)


_compare_all = lock_books.compare_all


def _compared_late(group: GroupActor, session: Session, books: LockBooks, held: Any) -> None:
    """The other half of it."""
    session.comparison.done.discard(books.key.place)
    _compare_book(group, session, books, held)


_compare_book = owner._compare_book


def _before_the_books() -> contextlib.AbstractContextManager[Any]:
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(lock_books, "compare_all", _served_before_compared))
    stack.enter_context(mock.patch.object(owner, "_compare_book", _compared_late))
    return stack


def _relay_forgotten(gateway: Gateway, link: OwnerLink, item: Settled) -> None:
    """Every fourth answer finds nobody who waits for it."""
    if item.relay_id % 4:
        _heard_settled(gateway, link, item)
    else:
        link.relays.pop(item.relay_id, None)


_heard_settled = Gateway._heard_settled


def _returned_and_kept(link: GatewayLink, group: GroupActor, session: Session, lend: Lend) -> None:
    """An owner gives back what it was lent, and uses it all the same."""
    if lend.recalls:
        used = session.credit.delivered_records, session.credit.delivered_bytes
        link.way.say(Returned(lend.handle, *used))
    else:
        _lend(link, group, session, lend)


_lend = GatewayLink._lend


def _recalled_for_ever(lent_credit: LentCredit, owner_id: str, records_total: int) -> None:
    """What comes back is not noticed."""


def _still_lent(lent_credit: LentCredit, owner_id: str) -> None:
    """What was lent over a link that is gone stays lent."""
    lent_credit._loans.setdefault(owner_id, Loan())


def _lent_twice(lent_credit: LentCredit, room: int, *args: Any, **how: bool) -> list[CreditChange]:
    """What is lent already is lent to the next one too."""
    return _balance(lent_credit, room + lent_credit.lent, *args, **how)


_balance = LentCredit.balance


_hear_of = GatewayLink._hear_of


def _left_for_good(link: GatewayLink, group: GroupActor, session: Session, item: Any) -> None:
    """A member whose stream broke counts as one that left."""
    if isinstance(item, MemberDown):
        item = item._replace(left=True)
    _hear_of(link, group, session, item)


def _epochs_from_one(store: MemoryStore, members: Sequence[MemberRow]) -> list[int | JoinRefusal]:
    """Member epochs begin with 1 in a fleet too."""
    store._fleet = False
    try:
        return _join_members(store, members)
    finally:
        store._fleet = True


_join_members = MemoryStore.join_members


FLEET_MUTATIONS: dict[str, Patch] = {
    "a new owner does not ask for lock books": on(GatewayLink, "ask_books", _nothing),
    "a new owner delivers before the lock books are compared": _before_the_books,
    "a gateway does not note what it passed on": on(Away, "received", _nothing),
    "a gateway forgets a relay": on(Gateway, "_heard_settled", _relay_forgotten),
    "credit is returned and used": on(GatewayLink, "_lend", _returned_and_kept),
    "credit is lent twice": on(LentCredit, "balance", _lent_twice),
    "returned credit is not noticed": on(LentCredit, "returned", _recalled_for_ever),
    "credit lent over a link that is gone stays lent": on(LentCredit, "forget", _still_lent),
    "nobody tells that it is hungry": on(Fleet, "unmet", _nothing),
    "a restart keeps what its former process owned": on(
        hand_over, "release_former", _nothing_async
    ),
    "a delivery of a former owner is passed on": on(Gateway, "_comes_late", lambda *_: False),
    "letters go out while their partition is served elsewhere": on(
        SharedOrder, "_is_apart", lambda *_: False
    ),
    "an own share-partition does not ask lent credit back": on(Gateway, "hungry_here", _nothing),
    "a share-partition that moves stays owned": on(hand_over, "release", _nothing_async),
    "a stream that breaks elsewhere counts as a departure": on(
        GatewayLink, "_hear_of", _left_for_good
    ),
    "a new owner does not know who holds locks": on(loading, "_meet_holders", _nothing_async),
    "member epochs begin with 1 again": on(MemoryStore, "join_members", _epochs_from_one),
}
