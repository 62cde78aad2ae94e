"""What the judge checks of programs: what their SDK gives them, beyond what is sent to its process.

A record whose lock the coordinator has taken back is not given to a program that has heard so, and
whoever takes one back says so ahead of all that follows. Where order is kept, a program gets a
record only when it is done with every earlier one of its key. Its SDK speaks of nothing that the
program was not given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from sharecoord.core.changes import InFlightRow
from sharecoord.core.states import AcknowledgeType, RecordState
from tests.simulation.judges.shadow import RecordLife, RecordLog, Shadow, name_of

__all__ = ["ProgramJudge"]


class ProgramJudge:
    """See the module.

    Args:
        log: What the logs hold.
        broken: Notes a broken promise.
    """

    def __init__(self, log: RecordLog, broken: Callable[[str], None]) -> None:
        self._log = log
        self._broken = broken
        self._numbers = itertools.count(1)

    def given(
        self, shadow: Shadow, member_id: str, offset: int, token: int, *, explicit: bool
    ) -> None:
        """A program got a record."""
        life = shadow.life(offset)
        where = f"{name_of(shadow)}@{offset}: given to {member_id}"
        if token not in life.arrived:
            self._broken(f"{where}, and it never arrived under {token:x}")
        if token in life.told:
            self._broken(f"{where} after it heard that {token:x} was taken back")
        if token in life.given:
            self._broken(f"{where} twice under {token:x}")
        life.given[token] = next(self._numbers)
        if (offset, token) in shadow.in_order:
            self._check_earlier(shadow, member_id, offset, token, where, explicit=explicit)

    def _check_earlier(
        self,
        shadow: Shadow,
        member_id: str,
        offset: int,
        token: int,
        where: str,
        *,
        explicit: bool,
    ) -> None:
        row = shadow.row_at(offset)
        if row is None or (row.state, row.lock_token) != (RecordState.ACQUIRED, token):
            # It was taken back, and the notice is on its way.
            return
        keys = self._log.keys_of(shadow.key)
        for earlier, other in _unfinished_before(shadow, offset):
            if keys.get(earlier) != keys.get(offset):
                continue
            life, last = shadow.life(earlier), other.lock_token
            is_done = last in life.done
            is_ahead = not explicit and last in life.given
            if other.member_id != member_id or not (is_done or is_ahead):
                self._broken(f"{where} while {earlier} of its key is not finished")

    def said(self, member_id: str, where: str, life: RecordLife, said: AcknowledgeType) -> None:
        """A program's SDK speaks of a record, under the token of its life."""
        if said is not AcknowledgeType.RETURN and life.token not in life.given:
            self._broken(f"{where}: {member_id} says {said.name}, and its program never had it")

    def heard_back(self, shadow: Shadow, member_id: str, offset: int, token: int) -> None:
        """A program's SDK hears that a record is back: the rest of its chain was told before."""
        keys = self._log.keys_of(shadow.key)
        if (offset, token) not in shadow.in_order or token >> 32 != shadow.owner_epoch:
            # Loaded anew: its next owner says it when it has compared the books.
            return
        for later, life in shadow.lives.items():
            if later <= offset or keys.get(later) != keys[offset] or life.token < token:
                continue
            gone = life.token in life.taken_back and life.token in life.arrived
            said = any(token == life.token for token, _ in life.said)
            if (
                (life.holder, gone) == (member_id, True)
                and not said
                and life.token not in life.told
            ):
                self._broken(
                    f"{name_of(shadow)}@{offset}: {member_id} hears that it is back, before it "
                    f"hears that {later} is"
                )


def _unfinished_before(shadow: Shadow, offset: int) -> list[tuple[int, InFlightRow]]:
    return [
        (at, row)
        for row in shadow.rows.values()
        if row.state in (RecordState.AVAILABLE, RecordState.ACQUIRED)
        for at in range(row[0], min(row[1] + 1, offset))
    ]
