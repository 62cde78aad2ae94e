"""What happens in a simulated life: members with their characters, faults, operators."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sharecoord.core.delivery import Delivery
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.records import key_hashes_of
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import SharecoordError
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetTo
from sharecoord.runtime.letters.lanes import LaneSelection
from tests.simulation.environment import GROUP
from tests.simulation.fleet import finished
from tests.simulation.judges.order import KNOWN_MS
from tests.simulation.members import SimMember
from tests.simulation.operators import OPERATOR_S
from tests.simulation.replays import Replays
from tests.simulation.world import KEYS, LETTER_PARTITIONS, LETTERS, TOPICS, World

LETTERS_SIDE_BY_SIDE = 8
"""So many letters of a partition come from one partition, where it matters; then others do."""

STEPS = 30
MEMBERS = 5
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW, RETURN = AcknowledgeType.REJECT, AcknowledgeType.RENEW, AcknowledgeType.RETURN


class Script(Replays):
    """One life; its steps are its methods."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.runs = 0
        """Redrives so far."""
        self.sources = self.world.partitions
        """Partitions from which letters come; those that are added later have none."""
        self._numbers = itertools.count()

    # -- members at work ------------------------------------------------------------------------

    async def work(self, member: SimMember) -> None:
        """Treats deliveries until the stream is gone."""
        while (delivery := await member.next_delivery()) is not None:
            await asyncio.sleep(self.chance.choice((0, 0, 0.01, 0.2)))
            await self.treat(member, delivery)

    async def treat(self, member: SimMember, delivery: Delivery) -> None:
        """Mostly the right thing."""
        chance, settle = self.chance, member.settle
        what = chance.random()
        middle = chance.choice(delivery.ranges)
        cut = chance.randint(middle.first, middle.last)
        lock_s = self.world.lock_s
        if what < 0.4:
            await settle(delivery, ACCEPT)
        elif what < 0.5:
            await settle(delivery, RELEASE, first=cut)
            await settle(delivery, ACCEPT, last=cut - 1)
        elif what < 0.55:
            await settle(delivery, REJECT, last=cut)
            await settle(delivery, ACCEPT, first=cut + 1)
        elif what < 0.6:
            await settle(delivery, RETURN, last=cut)
        elif what < 0.66:
            await self.keep(member, delivery, cut)
            await settle(delivery, RENEW, first=cut)
            await asyncio.sleep(lock_s * chance.choice((0.5, 0.9, 1.1)))
            await settle(delivery, ACCEPT)
        elif what < 0.73:
            await asyncio.sleep(lock_s * chance.choice((0.95, 1.0, 1.2, 3)))
            await settle(delivery, ACCEPT)
        elif what < 0.78:
            await settle(delivery, RELEASE, delay_ms=chance.randint(1, 5_000))
        elif what < 0.84:
            await self.say_both(member, delivery)
        elif what < 0.9:
            await self.say_twice(member, delivery)
        elif what < 0.96:
            await self.lie(member, delivery)
        elif what >= 0.98:
            await self.keep_some(member, delivery, cut)

    async def keep_some(self, member: SimMember, delivery: Delivery, offset: int) -> None:
        """Stores checkpoints of a record, and gives it back."""
        for _ in range(self.chance.randint(1, 3)):
            await self.keep(member, delivery, offset)
        await member.settle(delivery, RELEASE, first=offset, last=offset)

    async def keep(self, member: SimMember, delivery: Delivery, offset: int) -> None:
        """Stores a checkpoint, and waits for the answer."""
        (token,) = (r.lock_token for r in delivery.ranges if r.first <= offset <= r.last)
        data = b"%d" % next(self._numbers)
        said = AcknowledgedRange(offset, offset, RENEW, token, checkpoint=data)
        await member.answer(member.say(delivery.key, [said]))

    async def say_both(self, member: SimMember, delivery: Delivery) -> None:
        """Accepts, and takes it back before the answer."""
        ranges = list(delivery.ranges)
        for kind in self.chance.sample((ACCEPT, RELEASE, REJECT, RETURN, RENEW), 2):
            said = [AcknowledgedRange(r.first, r.last, kind, r.lock_token) for r in ranges]
            member.say(delivery.key, said)
        await asyncio.sleep(0.01)

    async def say_twice(self, member: SimMember, delivery: Delivery) -> None:
        """One request, sent again because its answer is late."""
        kind = self.chance.choice((ACCEPT, RELEASE, RETURN, REJECT))
        said = [AcknowledgedRange(r.first, r.last, kind, r.lock_token) for r in delivery.ranges]
        number = member.say_all([(delivery.key, said)], twice=True)
        if self.chance.random() < 0.5:
            await member.answer(number)
            await asyncio.sleep(self.chance.choice((0, 0.1, self.world.lock_s)))
            await member.answer(member.say(delivery.key, said))

    async def lie(self, member: SimMember, delivery: Delivery) -> None:
        """Says things of others' records, of none, and out of order."""
        chance, key = self.chance, delivery.key
        others = [
            (offset, token)
            for m in self.world.members
            if m is not member
            for offset, token in m.book.get(key, {}).items()
        ]
        ranges = [
            AcknowledgedRange(
                at := chance.randint(0, 60),
                chance.randint(0, 300) if chance.random() < 0.3 else at + chance.randint(0, 20),
                kind,
                chance.choice((delivery.ranges[0].lock_token, 0, 1)),
            )
            for kind in chance.sample(list(AcknowledgeType), 3)
        ]
        if others and chance.random() < 0.7:
            kind = chance.choice(list(AcknowledgeType))
            stolen = sorted(chance.sample(others, min(3, len(others))))
            ranges = [AcknowledgedRange(at, at, kind, token) for at, token in stolen]
        foreign = replace(key, partition=key.partition + 1)
        # Tokens are one share-partition's: the same one may be the member's own in another.
        never = [item._replace(lock_token=item.lock_token + (1 << 60)) for item in ranges]
        member.say_all([(key, ranges), (foreign, never)])
        await asyncio.sleep(0)

    # -- members come and go --------------------------------------------------------------------

    def some_member(self) -> SimMember | None:
        members = self.world.present()
        return self.chance.choice(members) if members else None

    async def member_comes(self) -> None:
        if len(self.world.present()) < MEMBERS:
            self.world.live(self.world.new_member(), self.work)

    async def member_leaves(self) -> None:
        if member := self.some_member():
            await self.world.retire(member)
            member.leave()

    async def member_dies(self) -> None:
        """Its process is gone; sometimes it comes back under its old id, without its book."""
        if member := self.some_member():
            await self.world.retire(member)
            member.forget_all()
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.choice((0, 0.3, 5)))
                member.gone = False
                self.world.live(member, self.work)

    async def stream_breaks(self) -> None:
        """The member comes back with its lock book, perhaps elsewhere."""
        if member := self.some_member():
            member.break_off(told_s=self.chance.choice((0.0, 0.05, 1, 20)))

    async def member_stays_away(self) -> None:
        if member := self.some_member():
            await self.world.retire(member)
            member.break_off()
            await asyncio.sleep(self.chance.choice((1, self.world.lock_s, self.world.session_s)))
            member.gone = False
            self.world.live(member, self.work)

    async def member_pauses(self) -> None:
        member = self.some_member()
        if member is not None and member.stream is not None:
            places = frozenset([self.place()] if self.chance.random() < 0.5 else [])
            member.stream.up(member.stream.pause, places)

    async def member_subscribes(self) -> None:
        member = self.some_member()
        if member is not None and member.stream is not None:
            topics = self.chance.sample(TOPICS, self.chance.randint(1, 2))
            member.stream.up(member.stream.subscribe, topics)

    # -- coordinators ---------------------------------------------------------------------------

    async def coordinator_comes(self) -> None:
        if len(self.world.fleet.alive()) < self.world.coordinators:
            self.world.fleet.add()

    async def coordinator_dies(self) -> None:
        """At once or before any one of its next steps; then its restart, or another one's turn."""
        node = self.some_node()
        if node is None:
            return
        if self.chance.random() < 0.8:
            node.process.fuse = self.chance.randint(1, self.chance.choice((10, 100, 1000)))
            await asyncio.sleep(self.chance.choice((0.01, 0.5, 3)))
        node.process.kill()
        await asyncio.sleep(self.chance.choice((0.01, 0.5, 5)))
        names = {other.name for other in self.world.fleet.alive()}
        if self.chance.random() < 0.6 and not node.draining and node.name not in names:
            self.world.fleet.add(node.name)
        elif not self.world.fleet.alive():
            self.world.fleet.add()

    async def coordinator_ends(self) -> None:
        node = self.some_node()
        if node is not None and node.serving:
            await finished(node.process, node.end(), 10)
            node.process.kill()
            self.world.fleet.add()

    async def coordinator_freezes(self) -> None:
        """A zombie: others take over while it stands still, then it goes on where it was."""
        node = self.some_node()
        if node is None:
            return
        others = len(self.world.fleet.alive())
        node.process.freeze()
        self.world.judge.trouble()
        for member in self.world.streams_to(node):
            self.world.judge.silent(member.name)
        if others == 1 and self.world.coordinators > 1 and self.chance.random() < 0.7:
            self.world.fleet.add()
        await asyncio.sleep(self.chance.choice((0.3, 3, 6, 12)))
        for member in self.world.streams_to(node):
            if self.chance.random() < 0.6:
                member.break_off()
        await asyncio.sleep(self.chance.choice((0, 1, 6)))
        if not node.process.dead:
            node.process.thaw()
        for member in self.world.streams_to(node):
            if member.stream is not None and member.stream.joined and not member.has_left:
                self.world.judge.joined(member.name, member.stream, node.name)

    # -- between coordinators -------------------------------------------------------------------

    async def link_breaks(self) -> None:
        """It is made again at once, or when its ends have noticed."""
        network = self.world.fleet.network
        if wires := network.open_wires():
            network.break_off(self.chance.choice(wires))

    async def two_are_parted(self) -> None:
        """Both live, and reach the store and their members."""
        names = sorted({node.name for node in self.world.fleet.alive()})
        if len(names) > 1:
            await self.part([frozenset(self.chance.sample(names, 2))])

    async def part(self, pairs: list[frozenset[str]]) -> None:
        self.world.fleet.network.block(pairs)
        await asyncio.sleep(self.chance.choice((0.3, 2, 7, 15)))
        self.world.fleet.network.unblock(pairs)

    async def coordinator_is_cut_off(self) -> None:
        """From all others, and mostly from the store; some members still reach it."""
        node = self.some_node()
        if node is None:
            return
        others = {other.name for other in self.world.fleet.alive()} - {node.name}
        node.trouble.down = self.chance.random() < 0.7
        for member in self.world.streams_to(node):
            if self.chance.random() < 0.5:
                member.break_off(told_s=self.chance.choice((0.05, 20)))
        await self.part([frozenset((node.name, other)) for other in sorted(others)])
        node.trouble.down = False

    # -- store and Kafka ------------------------------------------------------------------------

    async def store_fails(self) -> None:
        if node := self.some_node():
            node.trouble.fails = self.chance.choice((0.1, 0.5, 1.0))
            await asyncio.sleep(self.chance.choice((0.05, 0.5, 3)))
            node.trouble.fails = 0.0

    async def store_goes(self) -> None:
        if node := self.some_node():
            node.trouble.down = True
            await asyncio.sleep(self.chance.choice((0.1, 2, 8)))
            node.trouble.down = False

    async def store_is_slow(self) -> None:
        """So slow at times that the lease ends meanwhile."""
        if node := self.some_node():
            node.trouble.delay_s = self.chance.choice((0.02, 0.7, 6))
            await asyncio.sleep(self.chance.choice((1, 3, 9)))
            node.trouble.delay_s = 0.001

    async def store_clock_jumps(self) -> None:
        by_ms = self.chance.choice((-20_000, -3_000, -500, 500, 3_000, 30_000))
        self.world.store_ahead_ms += by_ms
        self.world.judge.clock_jumped(by_ms)

    async def kafka_goes(self) -> None:
        self.world.log.set_down(down=True)
        self.world.fleet.dead_letters.down = True
        await asyncio.sleep(self.chance.choice((0.1, 2, 8)))
        self.world.log.set_down(down=False)
        self.world.fleet.dead_letters.down = False

    async def kafka_fails(self) -> None:
        self.world.log.describe_failures += self.chance.randint(1, 5)

    def present_place(self) -> tuple[str, int] | None:
        topic, partition = self.place()
        return (topic, partition) if self.world.log.exists(topic) else None

    async def more_records(self) -> None:
        most = self.chance.choice((60, 60, 60, 300))
        self.world.append(*self.place(), self.chance.randint(1, most))

    async def control_records(self) -> None:
        if place := self.present_place():
            topic, partition = place
            if self.world.takes_records(topic, partition):
                self.world.log.skip(topic, self.chance.randint(1, 3), partition=partition)

    async def log_is_compacted(self) -> None:
        if place := self.present_place():
            topic, partition = place
            records = self.world.log.log(topic, partition).records
            gone = [r.offset for r in records if self.chance.random() < 0.1]
            self.world.log.compact(topic, gone, partition=partition)

    async def log_start_moves(self) -> None:
        if place := self.present_place():
            topic, partition = place
            log = self.world.log.log(topic, partition)
            to = self.chance.randint(log.log_start, min(log.log_end, log.log_start + 30))
            self.world.log.move_log_start(topic, to, partition=partition)

    async def log_is_truncated(self) -> None:
        if place := self.present_place():
            topic, partition = place
            log = self.world.log.log(topic, partition)
            to = self.chance.randint(max(log.log_start, log.log_end - 20), log.log_end)
            key = self.world.key(topic, partition)
            self.world.truncating.add(key)
            self.world.log.truncate(topic, to, partition=partition)
            if self.world.log.compares_epochs:
                self.world.judge.log_cut(key, to, log.leader_epoch)
            if self.world.grows_unseen:
                self.world.grow_unseen(key, to)
            else:
                await self.world.grow_once_seen(key, to)

    async def topic_is_made_again(self) -> None:
        topic = self.chance.choice(TOPICS)
        if not self.world.log.exists(topic):
            return
        quiet = self.chance.random() < 0.5
        self.world.log.delete(topic, quiet=quiet)
        if not quiet:
            await asyncio.sleep(self.chance.choice((0.3, 1, 5)))
        self.world.log.create(topic, self.world.partitions)
        topic_id = self.world.log.topic_id(topic)
        self.world.young.add(topic_id)
        await asyncio.sleep(0.3)
        self.world.young.discard(topic_id)
        for partition in range(self.world.partitions):
            self.world.append(topic, partition, self.chance.randint(0, 200 * quiet + 30))

    async def topic_grows(self) -> None:
        if self.world.partitions < 4:
            self.world.partitions += 1
            for topic in TOPICS:
                self.world.log.create(topic, self.world.partitions)

    # -- operators ------------------------------------------------------------------------------

    async def offsets_are_reset(self) -> None:
        topic, partition = self.place()
        kind = self.chance.choice((ResetKind.EARLIEST, ResetKind.OFFSET, ResetKind.CURRENT))
        to = ResetTo(kind, self.chance.randint(0, 60) if kind is ResetKind.OFFSET else 0)
        command = ResetCommand(GROUP, to, topics={topic: (partition,)}, force=True)
        node = self.some_node()
        if node is not None and node.serving and node.admin is not None:
            await finished(node.process, node.admin.reset_offsets(command), 5)

    async def offsets_are_deleted(self) -> None:
        """All members go first: what is in use can not be deleted."""
        node = self.some_node()
        if node is None or not node.serving or node.admin is None:
            return
        for member in self.world.present():
            await self.world.retire(member)
            member.leave()
        await asyncio.sleep(1)
        topic = self.place()[0]
        await finished(node.process, node.admin.delete_offsets(GROUP, [topic]), 5)

    async def letters_are_redriven(self) -> None:
        """Some of those that were not, or again some that are not under way; mostly at any rate."""
        node, chance = self.some_node(), self.chance
        if node is None or not node.serving or node.coordinator is None:
            return
        partition = chance.randrange(LETTER_PARTITIONS)
        first = self.world.log.log(LETTERS, partition).log_end
        self.world.append(LETTERS, partition, chance.randint(1, 20))
        end = self.world.log.log(LETTERS, partition).log_end
        runs: list[tuple[int, int]] = []
        at = chance.randint(max(0, first - 20), first)
        while at < end:
            last = min(end - 1, at + chance.randint(0, 6))
            runs.append((at, last))
            at = last + chance.randint(2, 5)
        selection = self._letters(partition, chance.choice(TOPICS), runs)
        self.runs += 1
        redrive = node.coordinator.lanes.redrive(
            GROUP,
            [selection],
            rate_per_s=chance.choice((0, 0, 20)),
            run_id=f"run-{self.runs}",
            again=chance.random() < 0.2,
        )
        await finished(node.process, redrive, 5)

    def _letters(
        self, partition: int, topic: str, runs: Sequence[tuple[int, int]]
    ) -> LaneSelection:
        """Of a topic, and of one partition of it where order is kept by key."""
        topic_id = self.world.log.topic_id(LETTERS)
        selection = LaneSelection(LETTERS, topic_id, partition, topic, runs)
        if not self.world.has_keys:
            return selection
        # A letter comes from one partition of a topic, whenever it is redriven.
        source = runs[0][0] // LETTERS_SIDE_BY_SIDE % self.sources
        every = (at for first, last in runs for at in range(first, last + 1))
        chosen = [at for at in every if at // LETTERS_SIDE_BY_SIDE % self.sources == source]
        known = self.world.log.known.keys.get((topic_id, partition), {})
        return replace(
            selection,
            spans=[(at, at) for at in chosen],
            keys=key_hashes_of([known.get(at) for at in chosen]),
            source_partition=source,
        )

    async def lanes_are_emptied(self) -> None:
        """What was never handed out is taken back."""
        node = self.some_node()
        if node is not None and node.serving and node.coordinator is not None:
            await finished(node.process, node.coordinator.lanes.withdraw(GROUP, LETTERS), 5)

    async def settings_change(self) -> None:
        node = self.some_node()
        if node is None or not node.serving or node.admin is None:
            return
        if self.chance.random() < 0.5:
            limit = self.chance.choice((1, 2, 5, 10))
            change = {"share.delivery.count.limit": str(limit)}
        else:
            change = {"share.record.lock.duration.ms": str(self.chance.choice((1000, 8000)))}
        await finished(node.process, node.admin.alter_group_configs(GROUP, change, []), 5)

    async def caches_are_emptied(self) -> None:
        """All but the read-ahead leaves memory."""
        node = self.some_node()
        if node is not None and node.coordinator is not None:
            for group in node.coordinator.groups.values():
                for actor in group.partitions.values():
                    if actor.partition is not None:
                        actor.cache.evict(actor.partition.window.end_offset, actor.cache.size_bytes)

    # -- the whole ------------------------------------------------------------------------------

    def steps(self) -> dict[Callable[[], Awaitable[None]], int]:
        """What may happen next, and how often."""
        lanes = self.world.has_lanes
        return {
            self.more_records: 30,
            self.member_comes: 14,
            self.member_leaves: 3,
            self.member_dies: 4,
            self.stream_breaks: 7,
            self.member_stays_away: 3,
            self.member_pauses: 3,
            self.member_subscribes: 3,
            self.coordinator_comes: 4,
            self.coordinator_dies: 6,
            self.coordinator_ends: 2,
            self.coordinator_freezes: 5,
            self.link_breaks: 5,
            self.two_are_parted: 3,
            self.coordinator_is_cut_off: 3,
            self.store_fails: 8,
            self.store_goes: 2,
            self.store_is_slow: 4,
            self.store_clock_jumps: 2,
            self.kafka_goes: 2,
            self.kafka_fails: 2,
            self.control_records: 2,
            self.log_is_compacted: 3,
            self.log_start_moves: 3,
            self.log_is_truncated: 2,
            self.topic_is_made_again: 2,
            self.topic_grows: 1,
            self.offsets_are_reset: 3,
            self.offsets_are_deleted: 1,
            self.settings_change: 2,
            self.group_is_paused: 2,
            self.records_are_forced: 3,
            self.caches_are_emptied: 3,
            **({self.letters_are_redriven: 12, self.lanes_are_emptied: 1} if lanes else {}),
        }

    async def run(self) -> None:
        """The life before its end."""
        steps = self.steps()
        if self.world.has_keys:
            steps[self.keys_are_blocked] = 6
        if self.world.is_switched:
            steps[self.order_is_switched] = 6
        if self.world.has_replays:
            steps[self.records_are_replayed] = 15
        for _ in range(self.world.coordinators):
            self.world.fleet.add()
        await asyncio.sleep(0.1)
        for _ in range(2):
            await self.more_records()
            await self.member_comes()
        self.world.programs_come()
        at_once: set[asyncio.Task[None]] = set()
        for _ in range(STEPS):
            step = self.chance.choices(list(steps), list(steps.values()))[0]
            self.world.step(step.__name__)
            task = asyncio.create_task(self._step(step), name=step.__name__)
            at_once.add(task)
            # Some go on beside the next ones.
            await asyncio.wait([task], timeout=self.chance.choice((0.01, 0.5, 30)))
            await asyncio.sleep(self.chance.choice((0, 0.0005, 0.003, 0.1, 0.7, 2)))
            self.world.check()
        await asyncio.gather(*at_once)
        await self.calm()

    async def _step(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except SharecoordError as error:
            self.world.trace(f"{step.__name__}: {error!r}")

    async def calm(self) -> None:
        """No more faults."""
        self.world.log.describe_failures = 0
        self.world.log.set_down(down=False)
        self.world.fleet.dead_letters.down = False
        for topic in TOPICS:
            if not self.world.log.exists(topic):
                self.world.log.create(topic, self.world.partitions)
        for node in self.world.fleet.alive():
            node.process.fuse = 0
            if node.process.frozen:
                node.process.thaw()
        # Who began between the two words of the operator did not hear the second, and the first
        # may have been on its way for long.
        while not all(node.ready for node in self.world.fleet.alive()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for wait_s in (OPERATOR_S, 0):
            self.world.fleet.resume_all()
            await asyncio.sleep(wait_s)
        if self.world.has_keys:
            await self.calm_of_keys()

    async def calm_of_keys(self) -> None:
        """Order is kept at last; one key is blocked for a while, and nothing of it goes out."""
        ordered = {"share.ordering": "key"}
        if self.world.is_switched:
            await self.operator(
                lambda admin: admin.alter_group_configs(GROUP, ordered, []),
                lambda row: row.config.get("share.ordering") == "key",
            )
        await self.operator(
            lambda admin: admin.block_keys(GROUP, [b"a"]), lambda row: bool(row.blocked_keys)
        )
        await asyncio.sleep(KNOWN_MS / 1000 + 1)
        for _ in range(2):
            await self.member_comes()
            await self.more_records()
            await asyncio.sleep(20)
        every = [key for key in KEYS if key is not None]
        await self.operator(
            lambda admin: admin.unblock_keys(GROUP, every), lambda row: not row.blocked_keys
        )


async def play(world: World) -> None:
    """The script of every life."""
    await Script(world).run()
