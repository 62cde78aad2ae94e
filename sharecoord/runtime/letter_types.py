"""What operators ask of dead letters and what they get, in no protocol's words."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sharecoord.core.lanes import Mark, MarkKind
from sharecoord.core.letter import Letter
from sharecoord.core.letter_filter import LetterFilter


class LetterState(enum.Enum):
    """Where a dead letter is."""

    WAITING = "waiting"
    """In the outbox: not in its topic yet."""
    IN_TOPIC = "in topic"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


class LetterPlace(NamedTuple):
    """A letter's place in a dead-letter topic."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class FoundLetter:
    """A letter, and where it is.

    Attributes:
        place: None while it waits.
        written_ms: When it came into its topic; 0 while it waits.
        mark: Of its last redrive or discard.
    """

    letter: Letter
    state: LetterState
    place: LetterPlace | None = None
    written_ms: int = 0
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some letters, and where to go on; "" = that was all."""

    letters: tuple[FoundLetter, ...]
    next: str = ""


class LetterStep(NamedTuple):
    """Something that happened to a letter."""

    time_ms: int
    """Since the epoch; 0 = not known."""
    text: str


@dataclass(frozen=True, slots=True)
class LetterView:
    """One letter whole, and its life in order of time."""

    found: FoundLetter
    steps: tuple[LetterStep, ...]


@dataclass(frozen=True, slots=True)
class LetterCommand:
    """A redrive or a discard.

    Attributes:
        wanted: Which letters; empty only together with `all_letters`.
        dry_run: Only say what would happen.
        rate_per_s: Records per second of a redrive; 0 = no limit.
        again: Whether those that were redriven before are redriven, too.
        discarded: Whether those that were discarded before are redriven, too.
        max_letters: 0 = as many as one call takes.
        topic: The dead-letter topic; "" = the group's.
    """

    kind: MarkKind
    group_id: str
    wanted: LetterFilter
    all_letters: bool = False
    dry_run: bool = False
    rate_per_s: int = 0
    again: bool = False
    discarded: bool = False
    max_letters: int = 0
    topic: str = ""


@dataclass(frozen=True, slots=True)
class LetterRun:
    """What a redrive or a discard did, or would do.

    Attributes:
        run_id: Its name in the marks; "" = nothing was done.
        letters: How many are (or would be) redriven or discarded.
        parts: How many by topic and partition that they come from.
        first: Some of them.
        redriven: Left out: redriven before.
        discarded: Left out: discarded before.
        under_way: Left out: an earlier redrive of them is not finished.
        copies: Left out: the same letter a second time. They are marked as discarded.
        waiting: Left out: not in their topic yet.
        not_redrivable: Left out, by payload: the record is not in the letter.
        more: Whether there may be more than one call takes: the same call goes on.
    """

    run_id: str = ""
    letters: int = 0
    parts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    first: tuple[FoundLetter, ...] = ()
    redriven: int = 0
    discarded: int = 0
    under_way: int = 0
    copies: int = 0
    waiting: int = 0
    not_redrivable: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
