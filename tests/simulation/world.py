"""One simulated life of a share group, from a seed: what there is, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from unittest import mock

import structlog

from sharecoord.config.group import GroupConfig
from sharecoord.core.changes import PartitionKey
from sharecoord.core.dispatch.schedule import DELIVER_AT_HEADER
from sharecoord.core.partition.decisions import Decision
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.records import Headers
from sharecoord.core.states import AcquireMode
from sharecoord.runtime.kernel.context import ParkingLimits
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.testing.harness import STORE_EPOCH_MS
from tests.invariants import check_decision
from tests.simulation.environment import GROUP, SimLog
from tests.simulation.fleet import DEAD_LETTERS, Fleet, Node, finished
from tests.simulation.judges.judge import Judge
from tests.simulation.members import ANSWER_TIMEOUT_S, SimMember, Wishes
from tests.simulation.processes import bury_all, run_processes
from tests.simulation.programs import Program
from tests.world import check_coordinator

TOPICS = ("orders", "payments")

LETTERS, LETTER_PARTITIONS = "letters", 2
"""What is redriven; nobody subscribes to it."""

KEYS = (None, b"", b"a", b"b", b"c")
"""Of the records of lives that have keys."""

WAITS_MS = (300, 1_500, 5_000, 9_000)
"""Of records with a schedule, where the life has any."""

SEEN_WITHIN_S = 0.6
SEEN_LOOK_S = 0.0003
"""Shorter than a call to the store: what a coordinator sees is noticed before it is durable."""

GROWTH_RECORDS = 20
"""Half of the logs that are cut and grow again are longer than before."""

FINISH_S = 900.0
"""After the last fault everything must be worked off within so long, on virtual time."""

LAST_S = 60.0
"""The same for a few last records, one at a time."""

LIFE_S = 2_000.0
"""No script takes longer, unless it hangs."""

LOOK_S = 1.0


FEW_DELAYED = ParkingLimits(kept=2, most=3, page=2, low=1, ahead_ms=200)
"""Lives in which most delayed ranges are left to the store."""


class World:
    """Everything of one life; see the module.

    Args:
        seed: Decides all of it.
        trace: Gets a line for each event; None = nobody reads it.
    """

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.chance = random.Random(seed)
        choice = self.chance.choice
        self.seed = seed
        self.lines: list[str] = []
        self._trace_to = trace
        self.partitions = self.chance.randint(1, 3)
        self.log = SimLog()
        for topic in TOPICS:
            self.log.create(topic, self.partitions)
        # Some of those with keys, of which no order is switched on later.
        self.has_lanes = seed % 4 == 3 or seed % 16 == 1
        if self.has_lanes:
            # No draw: the other lives stay as they are.
            self.log.create(LETTERS, LETTER_PARTITIONS)
        # No draw, either: two lives of thirteen.
        self.has_replays = seed % 13 in (9, 11)
        # Nor here.
        self.has_times = seed % 5 == 2
        # Nor here: who compares them sees a cut whatever came since.
        self.log.compares_epochs = seed % 4 >= 2 or seed % 8 == 5
        self.replays = 0
        """Side groups so far."""
        self.lock_s = choice((1, 2, 2, 5, 10))
        self.session_s = choice((6, 10, 45))
        self.coordinators = choice((1, 1, 2, 2, 3))
        lone = self.coordinators == 1 and self.chance.random() < 0.75
        window = choice((0, 0, 0, 100))
        self.by_batch = not window and self.chance.random() < 0.5
        limit = choice((1, 2, 3, 5, 50))
        self.store_ahead_ms = 0
        self.database = MemoryDatabase(
            clock_ms=lambda: STORE_EPOCH_MS + int(loop.time() * 1000) + self.store_ahead_ms
        )
        self.judge = Judge(
            self.log.known,
            lambda: int(loop.time() * 1000),
            self.database.clock_ms,
            delivery_limit=limit,
            session_timeout_ms=1000 * self.session_s,
            window_max=window,
        )
        if trace is not None:
            self.judge.trace = self.trace
        defaults = self._settings(limit, window)
        self.fleet = Fleet(
            self.log,
            self.database,
            self.judge,
            self.chance,
            lone=lone,
            defaults=defaults,
            memory_bytes=choice((1, 20_000, 64 << 20)),
            parking=FEW_DELAYED if seed % 2 else ParkingLimits(),
        )
        self.fleet.on_death = self._node_died
        self.members: list[SimMember] = []
        self.side_members: list[SimMember] = []
        self.programs: list[Program] = []
        # No draw: two lives of sixteen, one of them with keys.
        self.has_programs = seed % 16 in (6, 9)
        self.sides: dict[str, asyncio.Task[None]] = {}
        """Who works off replays, by side group."""
        self.lives: dict[str, asyncio.Task[None]] = {}
        self.truncating: set[PartitionKey] = set()
        self.young: set[str] = set()
        self._numbers = 0

    def _settings(self, limit: int, window: int) -> dict[str, str]:
        """Of the group; window 0 = as it grows."""
        defaults = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(limit),
            "share.record.lock.duration.ms": str(1000 * self.lock_s),
            "share.session.timeout.ms": str(1000 * self.session_s),
            "share.retry.backoff.ms": str(self._backoff_ms()),
            "share.isolation.level": self.chance.choice(("read_committed", "read_uncommitted")),
        }
        if self.seed % 3 == 2:
            # No draw: the other lives stay as they are.
            defaults["errors.deadletterqueue.topic.name"] = DEAD_LETTERS
            self.judge.letters_once = self.seed % 2 == 1
            once = str(self.judge.letters_once).lower()
            defaults["errors.deadletterqueue.exactly.once"] = once
        if self.seed % 7 < 3:
            # No draw.
            defaults["share.retry.keep.payload"] = "true"
        self.has_keys, self.is_switched = self.seed % 4 == 1, self.seed % 8 == 5
        if self.has_keys:
            # No draw, either.
            defaults["share.ordering"] = "unordered" if self.is_switched else "key"
            if not self.is_switched:
                self.judge.order.always_kept()
                self.judge.side_order.always_kept()
        if window:
            defaults["share.partition.max.record.locks"] = str(window)
        return defaults

    def _backoff_ms(self) -> int:
        """The judge knows the least that jitter makes of it, and that it doubles to a ceiling."""
        base_ms: int = self.chance.choice((0, 0, 500))
        least, most_ms = 1 - GroupConfig().retry_backoff_jitter, GroupConfig().retry_backoff_max_ms
        self.judge.delays.backoff_ms = lambda failures: int(
            least * min(base_ms << failures - 1, most_ms)
        )
        return base_ms

    # -- telling --------------------------------------------------------------------------------

    def trace(self, line: str) -> None:
        """Notes an event."""
        if self._trace_to is not None:
            self._trace_to(f"{asyncio.get_running_loop().time():10.4f}  {line}")

    def step(self, line: str) -> None:
        """Notes an event of the script; the last ones are shown with a failure."""
        self.lines.append(f"{asyncio.get_running_loop().time():.3f} {line}")
        self.trace(f"* {line}")

    # -- members --------------------------------------------------------------------------------

    def new_member(self, *, topics: tuple[str, ...] = (), good: bool = False) -> SimMember:
        """A member that is not connected yet."""
        self._numbers += 1
        modes = list(AcquireMode) if self.by_batch else [AcquireMode.FAIR, AcquireMode.RECORD_LIMIT]
        wishes = Wishes(
            topics or tuple(self.chance.sample(TOPICS, self.chance.randint(1, 2))),
            AcquireMode.FAIR if good else self.chance.choice(modes),
            100 if good else self.chance.choice((0, 1, 7, 40)),
            1 << 40 if good else self.chance.choice((5, 60, 500)),
        )
        member = SimMember(f"m{self._numbers}", self.judge, self.chance, wishes, self.trace)
        self.members.append(member)
        return member

    def live(self, member: SimMember, work: Callable[[SimMember], Awaitable[None]]) -> None:
        """Lets a member connect and work, again and again."""
        self.lives[member.name] = asyncio.create_task(self._live(member, work), name=member.name)

    async def _live(self, member: SimMember, work: Callable[[SimMember], Awaitable[None]]) -> None:
        while not member.gone:
            nodes = self.fleet.serving()
            if nodes and await member.connect(self.chance.choice(nodes)):
                await work(member)
            if not member.gone:
                await asyncio.sleep(self.chance.choice((0.01, 0.1, 0.5)))

    def present(self) -> list[SimMember]:
        """Members that are alive."""
        return [member for member in self.members if not member.gone]

    def streams_to(self, node: Node) -> list[SimMember | Program]:
        """Members with a stream to a coordinator, joined or not."""
        every = (*self.members, *self.side_members, *self.programs)
        return [m for m in every if m.stream is not None and m.stream.node is node]

    def _node_died(self, node: Node) -> None:
        """Its members notice, each in its time."""
        self.trace(f"{node.name} died")
        self.judge.trouble()
        loop = asyncio.get_running_loop()
        for member in self.streams_to(node):
            self.judge.silent(member.name)
            loop.call_later(
                self.chance.choice((0.0, 0.05, 1.0)),
                member.ended,
                member.stream,
                None,
                context=self.fleet.outside,
            )

    async def retire(self, member: SimMember) -> None:
        """Ends a member's life."""
        member.gone = True
        task = self.lives.pop(member.name, None)
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def programs_come(self) -> None:
        """Members with a program behind the SDK's own rules, in some lives."""
        chance = random.Random(self.seed)
        for number in range(3 if self.has_programs else 0):
            program = Program(
                f"p{number}",
                self.judge,
                chance,
                TOPICS,
                self.fleet.serving,
                explicit=chance.random() < 0.7,
                most=chance.choice((1, 7, 500)),
                lock_s=self.lock_s,
                trace=self.trace,
            )
            self.programs.append(program)
            self.lives[program.name] = asyncio.create_task(program.live(), name=program.name)

    async def _programs_go(self) -> None:
        for program in self.programs:
            task = self.lives.pop(program.name)
            if task.done():
                task.result()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await program.leave()

    # -- side groups ----------------------------------------------------------------------------

    def serve_sides(self) -> None:
        """A replay that is not finished gets a member, which goes when it is."""
        for group_id in self.judge.replays.groups:
            task = self.sides.get(group_id)
            if (task is None or task.done()) and list(self.left_of(group_id)):
                if task is not None:
                    task.result()
                self.sides[group_id] = asyncio.create_task(self._serve_side(group_id))

    async def _serve_side(self, group_id: str) -> None:
        await asyncio.sleep(self.chance.choice((0, 0, 1, 10)))
        self._numbers += 1
        topics = {key.topic for key in self.judge.replays.stops if key.group_id == group_id}
        most, credit = self.chance.choice((0, 7, 40)), self.chance.choice((60, 500))
        wishes = Wishes(tuple(sorted(topics)), AcquireMode.FAIR, most, credit, group_id)
        member = SimMember(f"m{self._numbers}", self.judge, self.chance, wishes, self.trace)
        self.side_members.append(member)
        self.live(member, self._accepts)
        while list(self.left_of(group_id)):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await self.retire(member)
        member.leave()

    async def _accepts(self, member: SimMember) -> None:
        """Takes all that came at once: no lock may end in its own buffer."""
        while member.stream is not None and (delivery := await member.next_delivery()) is not None:
            member.accept(delivery)
            if not member.inbox:
                await asyncio.sleep(self.chance.choice((0, 0, 0.05, 0.4)))

    def left_of(self, group_id: str) -> Iterator[str]:
        """What of a replay is not finished; where a log has lost its end, less is to be done."""
        stops = self.judge.replays.stops.items()
        return self.judge.unfinished(
            (key, min(stop, self.log.log(*key.place).log_end))
            for key, stop in stops
            if key.group_id == group_id
            and self.log.exists(key.topic)
            and self.log.topic_id(key.topic) == key.topic_id
        )

    # -- logs -----------------------------------------------------------------------------------

    def append(self, topic: str, partition: int, count: int) -> None:
        """New records, if the log takes any."""
        if not self.takes_records(topic, partition):
            return
        has_times = self.has_times and topic != LETTERS
        if not self.has_keys and not has_times:
            self.log.append(topic, count, partition=partition)
            return
        for _ in range(count):
            at = self.log.log(topic, partition).log_end
            key = KEYS[at * 7 % 11 % len(KEYS)] if self.has_keys else None
            headers = self._deliver_at(at // 4 * 5 % 16) if has_times else None
            self.log.append(topic, partition=partition, key=key, headers=headers)

    def _deliver_at(self, place: int) -> Headers | None:
        """A quarter of the records wait, four in a row for the same time."""
        if place >= len(WAITS_MS):
            return None
        at_ms = self.database.clock_ms() + WAITS_MS[place]
        return [(DELIVER_AT_HEADER, b"%d" % at_ms)]

    def takes_records(self, topic: str, partition: int) -> bool:
        """Not when the log has lost its end and nobody has noticed, nor just after its creation.

        A log that is longer again before anybody looks is told by its leader epochs alone
        (`grow_unseen`); `grow_once_seen` is for one that grows after a look. No record of a new
        topic is read within the silence of decision 0006.
        """
        if self.log.find(topic, partition) is None or self.log.topic_id(topic) in self.young:
            return False
        self.truncating = {key for key in self.truncating if self._still_truncating(key)}
        return self.key(topic, partition) not in self.truncating

    def _still_truncating(self, key: PartitionKey) -> bool:
        shadow = self.judge.by_key.get(key)
        found = self.log.find(key.topic, key.partition)
        if shadow is None or found is None or self.key(key.topic, key.partition) != key:
            return False
        # What was read, or passed over, may not be stored yet.
        read = [
            each.position
            for each in self.log.readings
            if (each.topic, each.partition) == (key.topic, key.partition)
        ]
        return max([shadow.end, *read]) > found.log_end

    @property
    def grows_unseen(self) -> bool:
        """Whether logs may grow again before anybody sees that they were cut.

        Not where keys or times belong to offsets: the judge knows only those of what stands there.
        """
        return self.log.compares_epochs and not (self.has_keys or self.has_times)

    def grow_unseen(self, key: PartitionKey, cut: int) -> None:
        """Other records come to where a log was cut at once, fewer or more than it had lost."""
        self.truncating.discard(key)
        if count := cut % GROWTH_RECORDS:
            self.append(key.topic, key.partition, count)

    async def grow_once_seen(self, key: PartitionKey, cut: int) -> None:
        """Records come between the look that finds a log cut and what is made of it.

        Not where replays read the log, too: each has to see the cut by itself. When whoever saw it
        is gone before it is durable, the log loses these records as well: nobody could know.
        """
        shadow = self.judge.by_key.get(key)
        if shadow is None or shadow.end <= cut or self.has_replays:
            return
        epoch, shadow.truncated_at = shadow.state_epoch, None
        left = int(SEEN_WITHIN_S / SEEN_LOOK_S)
        while left and not (seen_by := self._sees_cut(key, cut)):
            left -= 1
            await asyncio.sleep(SEEN_LOOK_S)
        if not left:
            return
        self.truncating.discard(key)
        self.append(key.topic, key.partition, 1 + cut % (2 * GROWTH_RECORDS))
        while shadow.state_epoch == epoch and self._is_present(key):
            if self._sees_cut(key, cut) != seen_by or shadow.owner != seen_by:
                self.truncating.add(key)
                if self.log.log(key.topic, key.partition).log_end > cut:
                    self.log.truncate(key.topic, cut, partition=key.partition)
                return
            await asyncio.sleep(SEEN_LOOK_S)
        if shadow.truncated_at is not None and shadow.truncated_at > cut:
            self.judge.broken(
                f"{key.topic}[{key.partition}]: a log that was cut at {cut} is void from "
                f"{shadow.truncated_at} on only"
            )

    def _is_present(self, key: PartitionKey) -> bool:
        return self.log.exists(key.topic) and self.key(key.topic, key.partition) == key

    def _sees_cut(self, key: PartitionKey, cut: int) -> str:
        """Which coordinator knows that a log was cut just there; "" = none.

        What it found in a former state epoch is void.
        """
        shadow = self.judge.by_key[key]
        for node in self.fleet.alive():
            group = node.coordinator.groups.get(GROUP) if node.coordinator else None
            actor = group.partitions.get(key.place) if group else None
            seen = actor.log.shorter_log if actor and actor.key == key else None
            is_here = seen and (seen.state_epoch, seen.lowest_end) == (shadow.state_epoch, cut)
            if seen and is_here and seen.is_cut and not node.process.frozen:
                return node.name
        return ""

    def key(self, topic: str, partition: int) -> PartitionKey:
        """The share-partition of a place in its present life."""
        return PartitionKey(GROUP, topic, self.log.topic_id(topic), partition)

    def log_ends(self) -> list[tuple[PartitionKey, int]]:
        """Everything that must be worked off; not a lane that lives for its outbox alone."""
        lanes = [
            (key, shadow.end)
            for key, shadow in self.judge.by_key.items()
            if key.lane and shadow.start is not None
        ]
        return lanes + [
            (self.key(topic, partition), self.log.log(topic, partition).log_end)
            for topic in TOPICS
            if self.log.exists(topic)
            for partition in range(self.partitions)
        ]

    # -- checks and the end ---------------------------------------------------------------------

    def check(self) -> None:
        """What must hold at every moment."""
        self.judge.check()
        for node in self.fleet.alive():
            if node.coordinator is not None:
                check_coordinator(node.coordinator)

    async def finish(self) -> None:
        """Everybody goes, one well-behaved member for each coordinator stays: all gets done."""
        for member in self.present():
            await self.retire(member)
            if self.chance.random() < 0.5:
                member.leave()
            else:
                member.break_off()
        if not self.fleet.alive():
            self.fleet.add()
        await self._programs_go()
        for node in self.fleet.alive():
            member = self.new_member(topics=TOPICS, good=True)
            self.lives[member.name] = asyncio.create_task(self._finisher(member, node))
        loop = asyncio.get_running_loop()
        end_s = loop.time() + FINISH_S
        while left := self._left():
            self.serve_sides()
            self.check()
            if loop.time() > end_s:
                raise AssertionError("no progress: " + "; ".join(left))
            await asyncio.sleep(LOOK_S)
        await asyncio.gather(*self.sides.values())
        for missing in self.judge.replays.missing_of_all(self.judge.by_key):
            self.judge.broken(missing)
        self.trace("all done")
        await asyncio.sleep(ANSWER_TIMEOUT_S)
        for member in self.present():
            if member.unanswered:
                raise AssertionError(f"{member.name} hears nothing of {member.unanswered}")
            await self.retire(member)
            member.leave()
        await self._one_by_one()
        self.check()
        await asyncio.sleep(1)
        for node in self.fleet.alive():
            await finished(node.process, node.end(), 60)
            if not node.process.dead:
                raise AssertionError(f"{node.name} does not end")
        self.judge.check()
        self.fleet.events.check(self.fleet.database, self.judge.deleted_keys)

    def _left(self) -> list[str]:
        """Of the group, and of all side groups."""
        left = [*self.judge.unfinished(self.log_ends()), *self.judge.missing_letters()]
        for group_id in self.judge.replays.groups:
            left += [f"{group_id}, {each}" for each in self.left_of(group_id)]
        return left

    async def _one_by_one(self) -> None:
        """The last member takes one record at a time: what was lent in vain must come back."""
        for topic, partition in itertools.product(TOPICS, range(self.partitions)):
            self.append(topic, partition, 2)
        member = self.new_member(topics=TOPICS, good=True)
        member.wishes = replace(member.wishes, most=1, credit=1)
        node = self.chance.choice(self.fleet.alive())
        self.lives[member.name] = asyncio.create_task(self._finisher(member, node))
        end_s = asyncio.get_running_loop().time() + LAST_S
        while left := list(self.judge.unfinished(self.log_ends())):
            if asyncio.get_running_loop().time() > end_s:
                raise AssertionError("no progress one by one: " + "; ".join(left))
            await asyncio.sleep(LOOK_S)
        await self.retire(member)
        member.leave()

    async def _finisher(self, member: SimMember, node: Node) -> None:
        while True:
            if node.serving and await member.connect(node):
                while (delivery := await member.next_delivery()) is not None:
                    member.accept(delivery)
            await asyncio.sleep(0.2)


class FailedLifeError(AssertionError):
    """A life broke a promise; the message names the seed and how to see all of it."""


Script = Callable[[World], Awaitable[None]]


def run_life(seed: int, script: Script, trace: Callable[[str], None] | None = None) -> World:
    """Runs one life.

    Args:
        seed: Decides everything.
        script: What happens before the end.
        trace: Gets a line for each event.

    Raises:
        FailedLifeError: A promise was broken.
    """
    worlds: list[World] = []

    async def main() -> None:
        world = World(seed, trace)
        worlds.append(world)
        asyncio.get_running_loop().set_exception_handler(
            lambda _, found: world.judge.broken(f"unhandled: {found.get('exception')!r} {found}")
        )
        try:
            async with asyncio.timeout(LIFE_S):
                await script(world)
            await world.finish()
        finally:
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
            await bury_all(node.process for node in world.fleet.nodes)

    level = "ERROR" if trace is None else "INFO"
    checked = mock.patch.object(SharePartition, "apply", _checked_apply)
    with _logs_judged(worlds, level), checked if seed % CHECKED == 0 else contextlib.nullcontext():
        try:
            run_processes(main())
        except Exception as error:
            broken = worlds[0].judge.violations if worlds else []
            shown = "\n".join(
                [*broken[:6], "last steps:", *(worlds[0].lines[-12:] if worlds else [])]
            )
            raise FailedLifeError(
                f"SEED={seed}: {error!r}\n{shown}\n"
                f"replay: python -m tests.simulation.run --seed {seed} --trace"
            ) from error
    return worlds[0]


CHECKED = 5
"""One life in so many has every decision checked before it is applied."""

_apply = SharePartition.apply


def _checked_apply(partition: SharePartition, decision: Decision) -> None:
    check_decision(partition, decision)
    _apply(partition, decision)


EXPECTED_ERRORS = ("the store refused a commit",)
"""Errors in the log that faults of a script bring about; any other one is a mistake."""


@contextlib.contextmanager
def _logs_judged(worlds: list[World], level: str) -> Iterator[None]:
    def look(_: object, method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        if worlds:
            worlds[0].trace(f"  log: {event}")
        failed = method in ("error", "exception", "critical")
        if worlds and failed and event["event"] not in EXPECTED_ERRORS:
            worlds[0].judge.broken(f"logged: {event}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, look],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    try:
        yield
    finally:
        structlog.configure(**before)
