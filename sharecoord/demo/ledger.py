"""Ledgers: each worker writes what it does into a file of its own, which others follow.

A line is `<time> <verb> <member> <offset> <delivery count> <outcome>`. Times are seconds of the
machine's monotonic clock, which all processes share. A line is one unbuffered write, so what a
worker wrote before kill -9 is there.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict, deque
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple


class Verb(StrEnum):
    """Kind of a line.

    JOINED: the coordinator took the worker in. GOT: a record came out of `poll`. DID: the work is
    over, written BEFORE the acknowledgement. CONFIRMED, REFUSED: the coordinator's answer to it.
    """

    JOINED = "joined"
    GOT = "got"
    DID = "did"
    CONFIRMED = "confirmed"
    REFUSED = "refused"


class Outcome(StrEnum):
    """Acknowledgement of a worker; NONE in lines without one."""

    NONE = "-"
    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"


class Entry(NamedTuple):
    """A line of a ledger."""

    time_s: float
    verb: Verb
    member: str
    offset: int
    delivery_count: int
    outcome: Outcome

    @staticmethod
    def parse(line: str) -> Entry:
        """Reads a line; ValueError when it is not a line of a ledger."""
        time_s, verb, member, offset, count, outcome = line.split(" ")
        return Entry(
            float(time_s), Verb(verb), member, int(offset), int(count), Outcome(outcome.strip())
        )


class LedgerWriter:
    """Appends lines to a worker's own file."""

    def __init__(self, path: Path, member: str) -> None:
        self._member = member
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(
        self, verb: Verb, offset: int = -1, count: int = 0, outcome: Outcome = Outcome.NONE
    ) -> None:
        """Writes a line, which is in the kernel's hands when this returns."""
        line = f"{time.monotonic():.6f} {verb} {self._member} {offset} {count} {outcome}\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


class Unanswered:
    """Acknowledgements that wait for their answer, by record.

    A record may come again to the same member, and be acknowledged again, before the former
    acknowledgement is answered: answers tell offsets alone, in the order of the acknowledgements.
    """

    def __init__(self) -> None:
        self._said: defaultdict[int, deque[tuple[int, Outcome]]] = defaultdict(deque)

    def said(self, offset: int, count: int, outcome: Outcome) -> None:
        """Notes an acknowledgement of the `count`-th delivery of a record."""
        self._said[offset].append((count, outcome))

    def answered(self, offset: int) -> tuple[int, Outcome]:
        """Count and outcome that an answer is about; 0 and NONE when there are none."""
        waiting = self._said[offset]
        return waiting.popleft() if waiting else (0, Outcome.NONE)


class LedgerReader:
    """Follows one ledger while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Entry]:
        """The whole lines that were added since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._position += len(whole)
        return [Entry.parse(line) for line in whole.decode().splitlines()]


class Tally:
    """Sums of all ledgers, kept up to date for the scenes and the screen."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.joined: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.accepted: set[int] = set()
        self.in_hand: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """By worker, offsets that it has received and not finished, with delivery counts."""
        self.highest_count: dict[int, int] = {}

    def add(self, entries: list[Entry]) -> None:
        """Takes in lines of one ledger, in order."""
        self.entries += entries
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        member, offset = entry.member, entry.offset
        match entry.verb:
            case Verb.JOINED:
                self.joined.add(member)
            case Verb.GOT:
                count = entry.delivery_count
                self.in_hand[member][offset] = count
                self.highest_count[offset] = max(self.highest_count.get(offset, 0), count)
            case Verb.DID:
                self.in_hand[member].pop(offset, None)
                self.handled[member] += 1
                if entry.outcome is Outcome.ACCEPT:
                    self.accepted.add(offset)
            case Verb.CONFIRMED | Verb.REFUSED:
                pass
