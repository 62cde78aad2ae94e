"""Plays a script on one side, one step at a time, and writes down what came of it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from sharecoord.devenv.topics import Record, Topics
from tests.differential.kafka_offsets import Place as Standing
from tests.differential.members import ACCEPT, OURS, REJECT, RELEASE, Confirmed, Member, Place, Seen
from tests.differential.script import (
    ANSWERS,
    SPECIALS,
    Content,
    Fate,
    Kind,
    Phase,
    Script,
    Segment,
    Step,
)
from tests.differential.sides import Side, UnseenError, join
from tests.integration.test_kafka_edges import _offsets_in_log as offsets_in_log
from tests.support import eventually, unique_name

PHASE_S = 60.0
POLL_S = 0.05
STALLED_S = 6.0
"""Nothing new for so long, and records are due: Kafka's assignor left a partition to members that
wait, so another one joins."""
MEMBERS_MAX = 12
COMPACTION_S = 60.0

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "100",
}
DEPARTURES = {Fate.CLOSE, Fate.LEAVE, Fate.KILL}
KINDS = {Fate.ACCEPT: ACCEPT, Fate.RELEASE: RELEASE, Fate.REJECT: REJECT}


def log_end(bootstrap_servers: str, topic: str, partition: int) -> int:
    """One past the last offset, control records included."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
    finally:
        consumer.close()
    return int(end)


@dataclass
class Outcome:
    """What came of a script.

    Attributes:
        histories: By phase and place the delivery counts, in order.
        answers: By phase and place what was said of acknowledgements: errors, None for success. Not
            how often: Kafka's client may report two acknowledgements of an offset as one.
        failure: Why the script was not played to its end.
        is_void: Whether that is no fault of either side.
        transcript: What was done and seen.
    """

    histories: dict[tuple[int, Place], list[int]] = field(default_factory=dict)
    answers: dict[tuple[int, Place], set[str | None]] = field(default_factory=dict)
    failure: str = ""
    is_void: bool = False
    transcript: list[str] = field(default_factory=list)


def expected(script: Script) -> Outcome:
    """What the script says on paper."""
    outcome = Outcome()
    for number, phase in enumerate(script.phases):
        for place, counts in phase.due.items():
            outcome.histories[number, place] = counts
            fates = [script.fates[Step(number, place, count)] for count in counts]
            answers: set[str | None] = {None} if set(fates) & set(ANSWERS) else set()
            # At the limit the record is over when its lock is, and nobody is asked.
            if any(
                f is Fate.EXPIRE and c < script.limit for f, c in zip(fates, counts, strict=True)
            ):
                answers.add("INVALID_RECORD_STATE")
            if answers:
                outcome.answers[number, place] = answers
    return outcome


class Player:
    """One script on one side."""

    def __init__(self, side: Side, topics: Topics, script: Script) -> None:
        """Nothing is done yet.

        Args:
            side: Where it is played.
            topics: Writes the records to the broker of either side.
            script: What is played.
        """
        self.outcome = Outcome()
        self._side, self._topics, self._script = side, topics, script
        self._group = unique_name(f"s{script.seed}")
        self._topic = unique_name(f"d{script.seed}")
        self._ends: Counter[int] = Counter()
        """The log's end by partition."""
        self._names = itertools.count()
        self._start_s = self._news_s = time.monotonic()
        self._members: list[Member] = []
        self._styles: dict[str, str] = {}
        self._holding: dict[str, dict[Place, int]] = {}
        """By member what it says nothing about, with the count that it has."""
        self._going: dict[str, Fate] = {}
        """How members will leave that hold something."""
        self._served: set[str] = set()
        """Who has been given anything, and so has a session."""
        self._number = 0
        self._all_seen = False
        """Whether all of the phase's deliveries came."""
        self._error: Exception | None = None
        self._last = ""
        """What was waited for, when it was looked at last."""
        self._paper = expected(script)

    @property
    def _phase(self) -> Phase:
        return self._script.phases[self._number]

    def play(self) -> Outcome:
        """Plays it; an error ends it and stands in the outcome."""
        try:
            self._set_up()
            for number in range(len(self._script.phases)):
                self._number, self._all_seen = number, False
                self._play_phase()
        except Exception as error:  # noqa: BLE001 - reported with the transcript
            self.outcome.failure = f"{type(error).__name__}: {error}; {self._last}"
            self.outcome.is_void = isinstance(error, UnseenError)
            self._say(self.outcome.failure)
        finally:
            self._tear_down()
        return self.outcome

    def _tear_down(self) -> None:
        for member in self._members:
            try:
                member.close()
            except Exception as error:  # noqa: BLE001 - the first failure is the one that counts
                self._say(f"{member.name} does not close: {error}")
        self._topics.delete(self._topic)

    def _say(self, text: str) -> None:
        now_s = time.monotonic() - self._start_s
        self.outcome.transcript.append(f"{self._side.name:>10} {now_s:7.2f} {text}")

    # -- before a phase ---------------------------------------------------------------------------

    def _set_up(self) -> None:
        script = self._script
        config = COMPACTED if script.compacted else {}
        self._topics.create(self._topic, partitions=script.partitions, config=config)
        isolation = "read_committed" if script.read_committed else "read_uncommitted"
        self._side.configure(
            self._group,
            {
                "share.auto.offset.reset": "earliest",
                "share.delivery.count.limit": str(script.limit),
                "share.isolation.level": isolation,
            },
        )

    def _write(self, segment: Segment) -> None:
        topics = self._topics
        self._say(f"writes {segment.records} to {segment.partition}: {segment.content}")
        if segment.content is Content.COMPACTED:
            self._write_compacted(segment)
            return
        if segment.content is Content.SINGLE:
            for _ in range(segment.records):  # each waits for the one before
                topics.produce(self._topic, 1, partition=segment.partition)
        elif segment.content is Content.BATCH:
            topics.produce(self._topic, segment.records, partition=segment.partition)
        else:
            topics.produce_transaction(
                self._topic,
                segment.records,
                partition=segment.partition,
                commit=segment.content is Content.COMMITTED,
            )
            # The control record is written after the commit was confirmed.
            self._ends[segment.partition] += 1
        self._ends[segment.partition] += segment.records
        self._await_end(segment.partition)

    def _await_end(self, partition: int) -> None:
        """Waits until the log is as long as the script says."""

        def reached() -> bool:
            end = log_end(self._topics.bootstrap_servers, self._topic, partition)
            self._last = f"the log of {partition} ends at {end}"
            return end == self._ends[partition]

        eventually(reached, what=f"partition {partition} ends at {self._ends[partition]}")

    def _write_compacted(self, segment: Segment) -> None:
        """Writes, closes the log's segment with a last record, and waits for the cleaner."""
        now_ms = int(time.time() * 1000)
        # A segment is closed by a record that is more than `segment.ms` younger.
        records = [Record(b"k%d" % key, b"v", (), now_ms - 60_000) for key in segment.keys]
        self._topics.produce(self._topic, records)
        self._topics.produce(self._topic, [Record(b"last", b"v", (), now_ms)])
        left = [offset for _, offset in sorted(self._phase.due)]
        eventually(
            lambda: offsets_in_log(self._topics.bootstrap_servers, self._topic) == left,
            COMPACTION_S,
            what="compaction",
        )

    def _join(self) -> Member:
        phase, number = self._phase, next(self._names)
        name = f"m{number}"
        self._say(f"{name} joins")
        member = join(
            self._side,
            self._group,
            name,
            self._topic,
            partitions=self._script.partitions,
            child=phase.kind is Kind.KILLS,
            reads_ahead=not SPECIALS[phase.kind],
            config={
                "max.poll.records": phase.take,
                "share.acknowledgement.mode": (
                    "implicit" if phase.kind is Kind.IMPLICIT else "explicit"
                ),
            },
        )
        self._members.append(member)
        self._styles[name] = phase.styles[number % len(phase.styles)]
        self._news_s = time.monotonic()
        return member

    # -- a phase ----------------------------------------------------------------------------------

    def _play_phase(self) -> None:
        phase = self._phase
        self._say(f"-- phase {self._number}: {phase.kind}")
        for segment in phase.segments:
            self._write(segment)
        lock_ms = {"share.record.lock.duration.ms": str(phase.lock_ms)}
        self._side.configure(self._group, lock_ms)
        for _ in range(phase.members):
            self._join()
        self._until(self._all_delivered, "every delivery of the script")
        self._until(lambda: self._settled(phase.held), f"standing {phase.held}")
        # Those that hold something last: a fetch of the others may be under way, and on Kafka it
        # would count another delivery that nobody sees. They say so, or Kafka might forget counts
        # with the last of them.
        for member in self._free():
            self._close(member)
        for member in list(self._members):
            if phase.kind is Kind.PARKING:
                self._release_all(member)
            self._close(member)
        self._until(lambda: self._stands(phase.left), f"standing {phase.left}")
        if phase.reset is not None:
            self._say(f"reset to {phase.reset}")
            self._side.reset(self._group, self._topic, phase.reset)

    def _until(self, probe: Callable[[], bool], what: str) -> None:
        """Waits; an error of a step ends it, because the step can not be done again."""

        def step() -> bool:
            try:
                return probe()
            except Exception as error:  # noqa: BLE001 - raised again below
                self._error = error
                return True

        eventually(step, PHASE_S, what=what)
        if self._error is not None:
            raise self._error

    def _all_delivered(self) -> bool:
        """Polls as long as something comes; whether all of the phase's deliveries were seen."""
        while self._round():
            pass
        due = self._phase.due
        # A count that the script does not know is a finding, and nothing to wait for.
        if all(max(self._counts(place), default=0) >= due[place][-1] for place in due):
            self._all_seen = True
            return True
        stalled = time.monotonic() - self._news_s > STALLED_S
        if stalled:
            self._check_silent()
        if len(self._members) < MEMBERS_MAX and (stalled or not self._free()):
            self._join()
        return False

    def _settled(self, standing: dict[int, Standing]) -> bool:
        """Goes on polling, so that what is pending is sent and gaps are passed over."""
        if not self._free():
            self._join()
        while self._round():
            pass
        stands, heard = self._stands(standing), self._heard(self.outcome)
        wanted = self._heard(self._paper)
        self._last += f", {heard} of {wanted} answers"
        return stands and heard >= wanted

    def _stands(self, standing: dict[int, Standing]) -> bool:
        """Whether start offsets and lags are those of the script."""
        found = self._side.offsets(self._group, self._topic)
        self._last = f"standing {found}"
        gaps = self._phase.gaps
        return found.keys() <= standing.keys() and all(
            self._side.agrees(found[number], paper, gaps[number])
            if number in found
            else not self._side.tells_start_at_once and number not in self._begun()
            for number, paper in standing.items()
        )

    def _begun(self) -> set[int]:
        """The partitions of which a record was due, or whose start was set, until now."""
        phases = self._script.phases[: self._number + 1]
        reset = {n for phase in phases[:-1] for n in phase.reset or ()}
        return reset | {number for phase in phases for number, _ in phase.due}

    def _heard(self, outcome: Outcome) -> int:
        """How many acknowledgements of this phase were answered."""
        return sum(len(a) for (n, _), a in outcome.answers.items() if n == self._number)

    def _counts(self, place: Place) -> list[int]:
        return self.outcome.histories.get((self._number, place), [])

    def _free(self) -> list[Member]:
        return [member for member in self._members if not self._holding.get(member.name)]

    def _round(self) -> bool:
        """Every member that can polls once; whether anything came."""
        came = False
        for member in self._free():
            seen = member.poll(POLL_S)
            self._note(member, member.confirmations())
            if seen:
                came = True
                self._news_s = time.monotonic()
                self._handle(member, seen)
        for member in list(self._members):
            if self._holding.get(member.name):
                # A client hears, and hands back, only inside of calls; this one sends nothing.
                # Kafka's is left alone while records are due: nobody knows what it would fetch.
                if self._all_seen or self._side.module == OURS:
                    member.commit_async()
                self._note(member, member.confirmations())
                if member.name in self._going:
                    self._depart(member, self._going[member.name])
        return came

    def _note(self, member: Member, confirmations: list[Confirmed]) -> None:
        for place, error in confirmations:
            if place in self._phase.due:
                self.outcome.answers.setdefault((self._number, place), set()).add(error)
        if confirmations:
            errors = Counter(error for _, error in confirmations)
            self._say(f"{member.name} hears {dict(errors)}")

    # -- what a member does with what it was given ------------------------------------------------

    def _handle(self, member: Member, seen: list[Seen]) -> None:
        records = " ".join(f"{s.partition}/{s.offset}x{s.delivery}" for s in seen)
        self._say(f"{member.name} gets {records}")
        self._served.add(member.name)
        for one in seen:
            self.outcome.histories.setdefault((self._number, one.place), []).append(one.delivery)
        self._too_late({one.place for one in seen})
        if self._phase.kind is Kind.IMPLICIT:
            return
        fates = {one: self._fate(one) for one in seen}
        for one, fate in fates.items():
            if fate in ANSWERS:
                member.acknowledge(one.place, KINDS[fate])
        silent = {one: fate for one, fate in fates.items() if fate not in ANSWERS}
        if silent:
            self._be_silent(member, silent, answered=len(silent) < len(seen))
        elif self._styles[member.name] == "sync":
            self._commit(member)
        elif self._styles[member.name] == "async":
            member.commit_async()

    def _fate(self, one: Seen) -> Fate:
        # What the script does not know of is a finding: it shows in the histories.
        return self._script.fates.get(Step(self._number, one.place, one.delivery), Fate.ACCEPT)

    def _commit(self, member: Member) -> None:
        outcome = member.commit()
        self._say(f"{member.name} commits: {outcome}")
        self._note(member, member.confirmations())

    def _too_late(self, places: set[Place]) -> None:
        """Who had these records before, and let their locks run out, accepts them now."""
        for holder in list(self._members):
            held = self._holding.get(holder.name, {})
            late = places & held.keys() if self._phase.kind is Kind.EXPIRY else set()
            if not late:
                continue
            self._say(f"{holder.name} is late with {sorted(late)}")
            for place in late:
                holder.acknowledge(place, ACCEPT)
                del held[place]
            self._commit(holder)
            if not held:
                self._close(holder)

    def _be_silent(self, member: Member, silent: dict[Seen, Fate], *, answered: bool) -> None:
        words = sorted(f"{one.partition}/{one.offset}:{fate}" for one, fate in silent.items())
        self._say(f"{member.name} is silent: {' '.join(words)}")
        self._holding[member.name] = {one.place: one.delivery for one in silent}
        departures = sorted(set(silent.values()) & DEPARTURES)
        if departures == [Fate.CLOSE] and self._depart(member, Fate.CLOSE):
            return  # closing sends the answers to the others
        if answered:
            self._commit(member)
        member.hold()
        self._check_silent()
        if departures:
            self._going[member.name] = departures[0]

    def _check_silent(self) -> None:
        """Ends a play in which a client has fetched what its silent program will never see.

        What the SDK's has fetched goes back.
        """
        if self._side.module != OURS:
            for name, held in self._holding.items():
                self._side.holds_only(self._group, name, len(held))

    def _depart(self, member: Member, fate: Fate) -> bool:
        """Goes, once another member has a session: with the last one Kafka may forget counts."""
        others = [each for each in self._members if each is not member]
        if not any(each.name in self._served for each in others):
            return False
        if fate is Fate.CLOSE:
            self._close(member)
        elif fate is Fate.KILL:
            self._kill(member)
        else:
            self._say(f"{member.name} unsubscribes")
            member.leave()
        self._going.pop(member.name, None)
        return True

    def _kill(self, member: Member) -> None:
        held = self._holding.pop(member.name)
        member.hold()
        self._until(
            lambda: self._only_seen(member, len(held)),
            f"{member.name} has nothing that it has not seen",
        )
        self._say(f"{member.name} is killed")
        self._members.remove(member)
        member.kill()

    def _release_all(self, member: Member) -> None:
        """Ends the parking of what a member holds; no answer of the script."""
        for place in self._holding[member.name]:
            member.acknowledge(place, RELEASE)
        outcome = member.commit()
        self._say(f"{member.name} releases what it holds: {outcome}")
        assert set(outcome.values()) == {None}, outcome
        member.confirmations()

    def _only_seen(self, member: Member, count: int) -> bool:
        member.commit_async()  # hands back what came since
        return self._side.holds_only(self._group, member.name, count)

    def _close(self, member: Member) -> None:
        self._say(f"{member.name} closes")
        self._members.remove(member)
        self._holding.pop(member.name, None)
        self._going.pop(member.name, None)
        self._note(member, member.close())
