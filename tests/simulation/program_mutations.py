"""Mistakes about what programs get: in what a coordinator tells, and in the SDK's rules."""

from __future__ import annotations

import asyncio
from typing import Any

from sharecoord_sdk._core.acks import ACCEPT, AckRange
from sharecoord_sdk._core.lock_book import LockBook
from sharecoord_sdk._core.order import Turns

from sharecoord.runtime.partition.notices import Notices
from tests.simulation.fleet_mutations import Patch, on

_committed, _take_back, _turns = Notices._committed, LockBook._take_back, Turns.__init__


def _says_late(notices: Notices, *notice: Any) -> None:
    """After what waits for the same commit has gone out."""
    asyncio.get_running_loop().call_soon(_committed, notices, *notice)


def _accepts_unseen(book: LockBook, unwanted: Any) -> list[AckRange]:
    return [AckRange(each.span, ACCEPT) for each in _take_back(book, unwanted)]


def _whole_chains(turns: Turns, ordering: str, under_way: Any, **_: bool) -> None:
    _turns(turns, ordering, under_way, one_each=False)


PROGRAM_MUTATIONS: dict[str, Patch] = {
    "nobody is told what is taken back": on(Notices, "tell", lambda notices, ranges: None),
    "what is taken back is told after what follows": on(Notices, "_committed", _says_late),
    "an SDK does not listen to what is taken back": on(LockBook, "lose", lambda book, lost: None),
    "an SDK accepts what its program has not seen": on(LockBook, "_take_back", _accepts_unseen),
    "a program that may release gets a whole chain": on(Turns, "__init__", _whole_chains),
    "what follows a released record is handed out": on(
        Turns, "hold_back", lambda turns, span: None
    ),
}
"""What is wrong, and how to do it wrong for the length of a block."""
