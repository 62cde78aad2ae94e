"""A member's credit, lent to the owners of share-partitions by its gateway (design 9).

The gateway alone knows what a member is ready to take. An owner may deliver what it was lent and
no more, so all owners together never exceed the member's credit. Totals only grow, as on the
member's own stream: a repeated message does no harm. An owner that is asked for what it has not
used answers with what it has, and until then the rest counts as used.

Who has records waiting (is `hungry`) gets equal parts of the credit; while nobody is, everybody
keeps a part, so that a record that comes goes out without a question. The gateway's own partitions
are one of the owners here, under the name `HERE`; it needs no messages and takes what is free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

HERE: Final = ""


class Order(NamedTuple):
    """What the gateway says to an owner."""

    owner: str
    records_total: int
    """So many records may have been delivered in all."""
    recalls: bool
    """The owner gives back what it has not used, and says how much it has."""


@dataclass(slots=True)
class Loan:
    """What one owner was lent."""

    total: int = 0
    used: int = 0
    recalled: bool = False

    @property
    def open(self) -> int:
        """Records that may still come."""
        return self.total - self.used


class Purse:
    """One member's credit over all remote owners."""

    __slots__ = ("_loans", "_turn")

    def __init__(self) -> None:
        self._loans: dict[str, Loan] = {}
        self._turn = 0

    @property
    def lent(self) -> int:
        """Records that remote owners may still deliver."""
        return sum(loan.open for loan in self._loans.values())

    def open(self, owner: str) -> int:
        """Records that one of them may still deliver."""
        loan = self._loans.get(owner)
        return loan.open if loan else 0

    def balance(self, room: int, owners: Sequence[str], hungry: Collection[str]) -> list[Order]:
        """Brings what is lent close to equal parts; call it when something has changed.

        Args:
            room: Records that the member can take now, those that are lent included.
            owners: Of the share-partitions that it wants; `HERE` among them when there are own.
            hungry: Those of them that have more than they may deliver.

        Returns:
            What is to be said to whom. What is not lent is for `HERE`.
        """
        wanting = [owner for owner in owners if owner in hungry] or list(owners)
        if not wanting:
            return []
        self._turn += 1
        parts = self._parts(room, wanting)
        free = max(0, room - self.lent - parts.get(HERE, 0))
        orders: list[Order] = []
        missing = 0
        for owner, part in parts.items():
            if owner == HERE:
                continue
            loan = self._loans.setdefault(owner, Loan())
            more = part - loan.open
            if more <= 0 or loan.recalled:
                continue
            given = min(more, free)
            if given:
                free -= given
                loan.total += given
                orders.append(Order(owner, loan.total, recalls=False))
            missing += more - given
        missing += max(0, parts.get(HERE, 0) - max(0, room - self.lent))
        if missing:
            orders += self._recalls(parts, missing)
        return orders

    def _parts(self, room: int, wanting: list[str]) -> dict[str, int]:
        """Equal parts; what can not be divided goes to another one each time."""
        each, rest = divmod(max(room, 0), len(wanting))
        first = self._turn % len(wanting)
        turned = wanting[first:] + wanting[:first]
        return {owner: each + (place < rest) for place, owner in enumerate(turned)}

    def _recalls(self, parts: Mapping[str, int], missing: int) -> list[Order]:
        """Asks back as much as is missing, from those that were lent more than their part."""
        orders: list[Order] = []
        for owner, loan in self._loans.items():
            if missing <= 0:
                break
            surplus = loan.open - parts.get(owner, 0)
            if surplus > 0 and not loan.recalled:
                loan.recalled = True
                missing -= surplus
                orders.append(Order(owner, loan.total, recalls=True))
        return orders

    def recall(self) -> list[Order]:
        """Asks everything back that was lent and not used."""
        return self._recalls({}, self.lent)

    def delivered(self, owner: str, records: int) -> None:
        """Records came from an owner.

        With BATCH_OPTIMIZED the last run of records may be longer than what was lent: it counts as
        lent, and the member's credit is short of it.
        """
        loan = self._loans[owner]
        loan.used += records
        loan.total = max(loan.total, loan.used)

    def returned(self, owner: str, records_total: int) -> None:
        """An owner gave back what it had not used.

        Args:
            owner: Who.
            records_total: What it has used of all it was ever lent: on its way, or here already.
        """
        loan = self._loans[owner]
        loan.total = records_total
        loan.recalled = False
        assert loan.used <= loan.total, "what came was used"

    def forget(self, owner: str) -> None:
        """The way to an owner is gone: nothing that was lent to it can come any more."""
        self._loans.pop(owner, None)
