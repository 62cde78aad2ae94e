"""Random scripts from a seed: what happens to each delivery of each record, and what must come out.

A script decides by (phase, record, delivery count), never by member or order: who is given which
record first is chance on Kafka too (whose fetch takes the lock first), so it is the history of
each record that is compared, and that is exact. Writing the script is already playing it on paper:
the expected histories, start offsets and lags fall out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tests.differential.kafka_offsets import Place as Standing
from tests.differential.members import Place

SHORT_LOCK_MS = 4_000
"""Long enough for a record to reach its member on a busy machine, short enough to wait for."""
LONG_LOCK_MS = 60_000


class Fate(StrEnum):
    """What a member does with a record that it was given."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    EXPIRE = "expire"
    """Says nothing until another member has it, then accepts it too late."""
    CLOSE = "close"
    """Closes its consumer without a word about it."""
    LEAVE = "leave"
    """Unsubscribes without a word about it."""
    KILL = "kill"
    """Is killed."""
    PARK = "park"
    """Keeps it until the phase ends, then releases it."""


ANSWERS = (Fate.ACCEPT, Fate.RELEASE, Fate.REJECT)
SETTLING = (Fate.ACCEPT, Fate.REJECT)


class Kind(StrEnum):
    """What a phase is about."""

    ANSWERS = "answers"
    DEPARTURES = "departures"
    EXPIRY = "expiry"
    PARKING = "parking"
    KILLS = "kills"
    IMPLICIT = "implicit"


SPECIALS: Mapping[Kind, Sequence[Fate]] = {
    Kind.ANSWERS: (),
    Kind.DEPARTURES: (Fate.CLOSE, Fate.LEAVE),
    Kind.EXPIRY: (Fate.EXPIRE,),
    Kind.PARKING: (Fate.PARK,),
    Kind.KILLS: (Fate.KILL,),
    Kind.IMPLICIT: (),
}
LEAVING = (Kind.DEPARTURES, Kind.KILLS)
USUAL_ANSWERS = (Fate.ACCEPT, Fate.ACCEPT, Fate.ACCEPT, Fate.ACCEPT, Fate.RELEASE, Fate.REJECT)


class Content(StrEnum):
    """How records are written."""

    SINGLE = "one record a batch"
    BATCH = "a batch"
    COMMITTED = "a committed transaction"
    ABORTED = "an aborted transaction"
    COMPACTED = "a compacted log"


class Segment(NamedTuple):
    """Records that are written together; `keys` are those of a compacted log."""

    content: Content
    partition: int
    records: int
    keys: tuple[int, ...] = ()


class Step(NamedTuple):
    """A delivery of a record."""

    phase: int
    place: Place
    delivery: int


@dataclass
class Phase:
    """A part of a script; all its members are new, and gone at its end.

    Attributes:
        kind: What it is about.
        segments: What is written before it.
        members: How many members it begins with.
        take: Their `max.poll.records`.
        styles: How the members send acknowledgements, in turn: `sync`, `async`, `poll`.
        due: By place the counts that are delivered, in order: the expected histories.
        held: Start offset and lag by partition when all is done but what is parked.
        left: The same when all members have left.
        gaps: By partition the offsets without a record so far.
        reset: Where the group is moved to afterwards, by partition.
    """

    kind: Kind
    segments: list[Segment]
    members: int
    take: int
    styles: tuple[str, ...]
    due: dict[Place, list[int]] = field(default_factory=dict)
    held: dict[int, Standing] = field(default_factory=dict)
    left: dict[int, Standing] = field(default_factory=dict)
    gaps: dict[int, int] = field(default_factory=dict)
    reset: dict[int, int] | None = None

    @property
    def lock_ms(self) -> int:
        """Short where a lock has to run out."""
        short = self.kind in (Kind.EXPIRY, Kind.KILLS, Kind.DEPARTURES)
        return SHORT_LOCK_MS if short else LONG_LOCK_MS


class Script:
    """The script of a seed.

    Attributes:
        seed: What it was made from.
        partitions: Of its topic.
        compacted: Whether the topic is.
        read_committed: The group's isolation level.
        limit: The delivery count limit.
        phases: In order.
        fates: What happens to each delivery.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        draw = self._random
        self.compacted = seed % 8 == 5
        kills = seed % 5 == 2
        self.partitions = 1 if self.compacted or kills else draw.choice((1, 1, 2, 3))
        self.read_committed = draw.random() < 0.5
        self.limit = draw.choice((2, 3, 4, 5, 6))
        self.fates: dict[Step, Fate] = {}
        self._ends = [0] * self.partitions
        self._open: dict[Place, int] = {}
        self._visible: list[Place] = []
        self.phases: list[Phase] = []
        for kind in self._kinds(kills=kills):
            self._add_phase(kind)

    def _kinds(self, *, kills: bool) -> list[Kind]:
        draw = self._random
        usual = [Kind.ANSWERS, Kind.DEPARTURES, Kind.EXPIRY, Kind.PARKING, Kind.PARKING]
        kinds = [draw.choice(usual) for _ in range(draw.choice((1, 2, 2, 3)))]
        if kills:
            kinds[draw.randrange(len(kinds))] = Kind.KILLS
        if draw.random() < 0.3:
            kinds.append(Kind.IMPLICIT)
        return kinds

    def _add_phase(self, kind: Kind) -> None:
        draw, number = self._random, len(self.phases)
        phase = Phase(
            kind,
            self._segments(first=number == 0),
            members=draw.randint(1, 4),
            take=draw.choice((1, 3, 5, 10, 20, 100)),
            styles=tuple(draw.choices(("sync", "async", "poll"), k=3)),
        )
        if kind in LEAVING:
            phase.members += 1
        if SPECIALS[kind] and self.partitions > 1:
            # Two for each partition, or Kafka's assignor leaves one to a member that waits.
            phase.members = max(phase.members, 2 * self.partitions)
        if kind is Kind.KILLS:
            phase.styles = ("sync",)  # who is killed hears of nothing afterwards
        self.phases.append(phase)
        for segment in phase.segments:
            self._write(segment)
        phase.gaps = {
            partition: end - sum(number == partition for number, _ in self._visible)
            for partition, end in enumerate(self._ends)
        }
        self._play(number, phase)
        # A member that was killed is in Kafka's group until its session ends, for 45 s.
        if draw.random() < 0.25 and not any(p.kind is Kind.KILLS for p in self.phases):
            phase.reset = {n: self._anywhere(n) for n in range(self.partitions)}
            self._open = {place: 0 for place in self._visible if place[1] >= phase.reset[place[0]]}

    def _anywhere(self, partition: int) -> int:
        """A record of a partition, or the end."""
        offsets = [offset for number, offset in self._visible if number == partition]
        return self._random.choice([*offsets, self._ends[partition]])

    # -- what is written --------------------------------------------------------------------------

    def _segments(self, *, first: bool) -> list[Segment]:
        draw = self._random
        if self.compacted:
            keys = tuple(draw.randrange(25) for _ in range(80))
            return [Segment(Content.COMPACTED, 0, len(keys), keys)] if first else []
        kinds = (Content.SINGLE, Content.SINGLE, Content.BATCH, Content.COMMITTED, Content.ABORTED)
        return [
            Segment(draw.choice(kinds), partition, draw.randint(3, 15))
            for partition in range(self.partitions)
            for _ in range(draw.randint(1, 3))
        ]

    def _write(self, segment: Segment) -> None:
        partition, start = segment.partition, self._ends[segment.partition]
        end = start + segment.records
        offsets = range(start, end)
        if segment.content is Content.COMPACTED:
            newest = {key: offset for offset, key in enumerate(segment.keys)}
            end += 1  # what closes the segment, which is compacted then
            offsets = sorted([*newest.values(), end - 1])  # type: ignore[assignment]
        elif segment.content in (Content.COMMITTED, Content.ABORTED):
            end += 1  # the control record
        if segment.content is Content.ABORTED and self.read_committed:
            offsets = range(0)
        self._ends[partition] = end
        places = [(partition, offset) for offset in offsets]
        self._visible += places
        self._open.update(dict.fromkeys(places, 0))

    # -- what happens -----------------------------------------------------------------------------

    def _play(self, number: int, phase: Phase) -> None:
        draw = self._random
        specials = self._specials(phase.kind)
        poison = set(draw.sample(sorted(self._open), k=min(2, len(self._open))))
        parked: dict[Place, int] = {}
        for place, before in sorted(self._open.items()):
            count = before
            while True:
                count += 1
                answer = Fate.RELEASE if place in poison else draw.choice(USUAL_ANSWERS)
                answer = Fate.ACCEPT if phase.kind is Kind.IMPLICIT else answer
                fate = specials.get((place, count - before), answer)
                self.fates[Step(number, place, count)] = fate
                phase.due.setdefault(place, []).append(count)
                if fate is Fate.PARK:
                    parked[place] = count
                if fate is Fate.PARK or fate in SETTLING or count == self.limit:
                    break
        phase.held = self._standing(parked)
        self._open = {place: count for place, count in parked.items() if count < self.limit}
        phase.left = self._standing(self._open)

    def _specials(self, kind: Kind) -> dict[tuple[Place, int], Fate]:
        """By place and how many times it was delivered in this phase."""
        draw, choices = self._random, SPECIALS[kind]
        if not choices or not self._open:
            return {}
        most = 2 if kind is Kind.KILLS else 4
        places = draw.sample(sorted(self._open), k=min(draw.randint(1, most), len(self._open)))
        return {(place, draw.choice((1, 1, 2))): draw.choice(choices) for place in places}

    def _standing(self, unfinished: Mapping[Place, int]) -> dict[int, Standing]:
        found: dict[int, Standing] = {}
        for partition, end in enumerate(self._ends):
            offsets = [offset for number, offset in unfinished if number == partition]
            found[partition] = Standing(min(offsets, default=end), len(offsets))
        return found

    # -- for people -------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """The script in words."""
        isolation = "read_committed" if self.read_committed else "read_uncommitted"
        lines = [f"seed {self.seed}: {self.partitions} partitions, limit {self.limit}, {isolation}"]
        for number, phase in enumerate(self.phases):
            lines.append(
                f"phase {number} ({phase.kind}): {phase.members} members take {phase.take}, "
                f"lock {phase.lock_ms} ms, send by {'/'.join(phase.styles)}"
            )
            lines += [f"  write {s.records} to {s.partition}: {s.content}" for s in phase.segments]
            for place, counts in sorted(phase.due.items()):
                fates = [f"{c}:{self.fates[Step(number, place, c)]}" for c in counts]
                if fates != ["1:accept"]:
                    lines.append(f"  {place[0]}/{place[1]} " + " ".join(fates))
            lines.append(f"  then {_words(phase.held)}; all gone {_words(phase.left)}")
            if phase.reset:
                lines.append(f"  reset to {phase.reset}")
        return lines


def _words(standing: Mapping[int, Standing]) -> str:
    return ", ".join(f"{n}: start {s.start} lag {s.lag}" for n, s in sorted(standing.items()))
