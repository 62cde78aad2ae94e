"""A member's credit, lent to the owners of share-partitions by its gateway (design 9).

The gateway alone knows how many records a member is ready to take. An owner delivers no more than
it was lent, so all owners together never exceed the member's credit. Totals only grow, as on the
member's own stream, so a repeated message does no harm. An owner that is asked to give credit back
answers how much it has used; until then all that it was lent counts as used.

Owners that have records waiting (that are `hungry`) get equal parts of the credit. While no owner
is hungry each keeps a part, so that a new record goes out without a question. The gateway's own
partitions are one owner, `HERE`: it needs no messages and takes the credit that is not lent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

HERE: Final = ""


class CreditChange(NamedTuple):
    """A change of the credit of one owner."""

    owner: str
    records_total: int
    """Records that the owner may have delivered in all."""
    recalls: bool
    """The owner gives back the credit that it has not used, and says how much it has used."""


@dataclass(slots=True)
class Loan:
    """The credit that one owner was lent."""

    total: int = 0
    used: int = 0
    recalled: bool = False

    @property
    def open(self) -> int:
        """Records that the owner may still deliver."""
        return self.total - self.used


class LentCredit:
    """The credit of one member, lent to remote owners."""

    __slots__ = ("_loans", "_turn")

    def __init__(self) -> None:
        self._loans: dict[str, Loan] = {}
        self._turn = 0

    @property
    def lent(self) -> int:
        """Records that remote owners may still deliver."""
        return sum(loan.open for loan in self._loans.values())

    def open(self, owner: str) -> int:
        """Records that an owner may still deliver."""
        loan = self._loans.get(owner)
        return loan.open if loan else 0

    def balance(
        self, room: int, owners: Sequence[str], hungry: Collection[str], *, lends: bool = True
    ) -> list[CreditChange]:
        """Brings the lent credit close to equal parts, after any change; returns the changes.

        Args:
            room: Records that the member can take now, lent ones included.
            owners: Owners of the share-partitions that the member wants, perhaps with `HERE`.
            hungry: Owners that have more records than they may deliver.
            lends: Whether room that is free now is lent; else it is left to grow.
        """
        wanting = [owner for owner in owners if owner in hungry] or list(owners)
        if not wanting:
            return []
        self._turn += 1
        parts = self._parts(room, wanting)
        free = max(0, room - self.lent - parts.get(HERE, 0))
        changes: list[CreditChange] = []
        missing = 0
        for owner, part in parts.items():
            if owner == HERE:
                continue
            loan = self._loans.setdefault(owner, Loan())
            more = part - loan.open
            if more <= 0 or loan.recalled:
                continue
            given = min(more, free)
            free -= given
            missing += more - given
            if given and lends:
                loan.total += given
                changes.append(CreditChange(owner, loan.total, recalls=False))
        missing += max(0, parts.get(HERE, 0) - max(0, room - self.lent))
        if missing:
            changes += self._recalls(parts, missing)
        return changes

    def _parts(self, room: int, wanting: list[str]) -> dict[str, int]:
        """Equal parts; the rest of the division goes to other owners each time."""
        each, rest = divmod(max(room, 0), len(wanting))
        first = self._turn % len(wanting)
        turned = wanting[first:] + wanting[:first]
        return {owner: each + (place < rest) for place, owner in enumerate(turned)}

    def _recalls(self, parts: Mapping[str, int], missing: int) -> list[CreditChange]:
        """Asks missing credit back from owners that were lent more than their part."""
        changes: list[CreditChange] = []
        for owner, loan in self._loans.items():
            if missing <= 0:
                break
            surplus = loan.open - parts.get(owner, 0)
            if surplus > 0 and not loan.recalled:
                loan.recalled = True
                missing -= surplus
                changes.append(CreditChange(owner, loan.total, recalls=True))
        return changes

    def recall(self) -> list[CreditChange]:
        """Asks all credit back that was lent and not used."""
        return self._recalls({}, self.lent)

    def delivered(self, owner: str, records: int) -> None:
        """Records came from an owner.

        With BATCH_OPTIMIZED the last run of records may be longer than what was lent. All of it
        counts as lent, so the member's credit is reduced by it.
        """
        loan = self._loans[owner]
        loan.used += records
        loan.total = max(loan.total, loan.used)

    def returned(self, owner: str, records_total: int) -> None:
        """An owner gave credit back: of all that it was ever lent it has used `records_total`."""
        loan = self._loans[owner]
        loan.total = records_total
        loan.recalled = False
        assert loan.used <= loan.total, "every record that came was used"

    def forget(self, owner: str) -> None:
        """The link to an owner is gone: nothing that it was lent can come any more."""
        self._loans.pop(owner, None)
