"""What an event log is to look like, in numbers: no Spark.

A group has `partitions` share-partitions; each hands out a batch per *slot*. A slot is an acquired
range and what became of it, two changes. The same pattern of `PATTERN_SLOTS` slots repeats: sizes,
records that fail once, ranges that are released, poison keys. So each slot's offsets, times and
change sequences follow from its number alone, and any part of the log can be made anywhere.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.eventlog.schema import RangeEvent

BATCHES_PER_SECOND: Final = 4.0
"""Of a member, unless --hours asks for more events in less time."""
BLOCK_S: Final = 60
"""Traffic comes in stretches of this length when --hours is longer than what the events fill."""
ACTIVE_S_MIN: Final = 30
"""Shorter logs hold no starvation that could be told from a pause."""
PATTERN_SLOTS: Final = 1024
RETRY_SLOTS: Final = 12
"""After so many slots a failed delivery is repeated; more than are in flight."""
IN_FLIGHT_MAX: Final = 8
DELIVERY_LIMIT: Final = 5
POISON_SLOTS: Final = 256
POISON_FIRST: Final = 32
"""Slot of the first delivery of a poison record, in each `POISON_SLOTS`."""
ONCE_SLOTS: Final = 64
"""In each of these one record and one range fail once."""
LOCK_MS: Final = 30_000
SPIKE_S: Final = 60
START: Final = datetime(2026, 1, 5, tzinfo=UTC)
GROUPS_MAX, MEMBERS_MAX, PARTITIONS_MAX = 10_000, 100_000, 10_000


class Slot(NamedTuple):
    """A slot of the pattern."""

    slot: int
    first: int
    """Offset of its first record, from where the pattern begins."""
    size: int
    next: int
    """Offset behind all records so far."""
    delivery_count: int
    outcome: str
    state: str
    key: str
    """`poison`, `once`, or empty."""
    reason: str | None


class Spike(NamedTuple):
    """A time in which a partition's lag is high."""

    group: int
    partition: int
    first_s: int
    """Active second in which its records come; they are worked off in `seconds`."""
    seconds: int
    records: int


@dataclass(frozen=True, slots=True)
class GeneratorSettings:
    """What is asked for.

    Attributes:
        events: Rows at most; slightly fewer are made, so that all groups are alike.
        groups: Share groups; each has a topic of its own.
        members: Per group.
        partitions: Per topic.
        seed: The same seed and settings give the same rows.
        hours: From the first to the last event; None: as long as it takes at a usual rate.
        skew: Zipf exponent over the members; 0: batches go round.
        starved: Members, over all groups, that get nothing from some time on.
        poison_keys: Keys whose records always fail.
        lag_spikes: Times of high lag, each on one partition.
        drop: Fraction of changes that are missing.
    """

    events: int
    groups: int = 10
    members: int = 20
    partitions: int = 8
    seed: int = 1
    hours: float | None = None
    skew: float = 0.0
    starved: int = 0
    poison_keys: int = 0
    lag_spikes: int = 0
    drop: float = 0.0

    def __post_init__(self) -> None:
        """Raises AnalyticsError for a value out of its bounds."""
        for name, low, high in (
            ("events", 1, 10**12),
            ("groups", 1, GROUPS_MAX),
            ("members", 1, MEMBERS_MAX),
            ("partitions", 1, PARTITIONS_MAX),
            ("skew", 0, 10),
            ("starved", 0, self.groups * (self.members - 1)),
            ("poison_keys", 0, 10_000),
            ("lag_spikes", 0, 10_000),
            ("drop", 0, 0.9),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                flag = name.replace("_", "-")
                raise AnalyticsError(f"--{flag} {value}: it must be from {low} to {high}")
        if self.hours is not None and self.hours <= 0:
            raise AnalyticsError(f"--hours {self.hours}: it must be more than 0")


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers that follow from the settings.

    Attributes:
        settings: What was asked for.
        blocks: Stretches of traffic.
        block_s: Length of each.
        period_s: From the beginning of one to the next.
        slots: Per share-partition and block.
        in_flight: Slots of a share-partition under way at a time.
        pattern: The slots that repeat.
    """

    settings: GeneratorSettings
    blocks: int
    block_s: int
    period_s: int
    slots: int
    in_flight: int
    pattern: tuple[Slot, ...] = field(repr=False)

    @property
    def active_s(self) -> int:
        """Seconds with traffic."""
        return self.blocks * self.block_s

    @property
    def slots_in_all(self) -> int:
        """Slots of a share-partition."""
        return self.blocks * self.slots

    @property
    def slots_per_s(self) -> float:
        """So that what is in flight ends within the block."""
        return (self.slots + self.in_flight + 1) / self.block_s

    @property
    def pattern_records(self) -> int:
        """Records of one pattern."""
        return self.pattern[-1].next

    @property
    def rows(self) -> int:
        """Rows when nothing is dropped."""
        wanted = self.settings
        each = 2 * wanted.partitions * self.slots_in_all + wanted.members
        samples = (wanted.members + wanted.partitions) * self.active_s
        return wanted.groups * (each + samples)

    @property
    def demand(self) -> int:
        """Records that each member wants per second: twice what there is for it."""
        wanted = self.settings
        size = self.pattern_records / PATTERN_SLOTS
        return max(1, round(2 * size * self.slots_per_s * wanted.partitions / wanted.members))

    def starved_in(self, group: int) -> int:
        """How many members of a group starve: its last ones."""
        wanted = self.settings
        return (wanted.starved + wanted.groups - 1 - group) // wanted.groups

    def starved_from_s(self, group: int) -> int:
        """Active second from which on they get nothing: from a third to a half of the time."""
        return self.active_s // 3 + (group * self.active_s // 6) // self.settings.groups

    def wall_s(self, active_s: int) -> int:
        """Seconds from the start to an active second."""
        return (active_s // self.block_s) * self.period_s + active_s % self.block_s

    def time(self, active_s: int) -> datetime:
        """When an active second begins."""
        return START + timedelta(seconds=self.wall_s(active_s))

    def spikes(self) -> list[Spike]:
        """Where lag is high: one after the other, over groups and partitions in turn."""
        wanted = self.settings
        apart = self.active_s // (wanted.lag_spikes + 1)
        seconds = max(1, min(SPIKE_S, apart // 2))
        height = math.ceil(seconds * self.slots_per_s * self.pattern_records / PATTERN_SLOTS)
        return [
            Spike(
                number % wanted.groups,
                (number // wanted.groups) % wanted.partitions,
                apart * (number + 1),
                seconds,
                height,
            )
            for number in range(wanted.lag_spikes)
        ]

    @property
    def poison_rounds(self) -> int:
        """How often each share-partition hands out a poison record until it is archived."""
        last = POISON_FIRST + (DELIVERY_LIMIT - 1) * RETRY_SLOTS
        return max(0, (self.slots_in_all - last - 1) // POISON_SLOTS + 1)


def group_name(group: int) -> str:
    """The id of a group."""
    return f"group-{group}"


def topic_name(group: int) -> str:
    """The one topic of a group."""
    return f"topic-{group}"


def member_name(group: int, member: int) -> str:
    """The id of a member; as long as a real one."""
    return f"00000000-0000-4000-8000-{group:04d}{member:08d}"


def make_plan(settings: GeneratorSettings) -> Plan:
    """Chooses rates and times so that the rows come up to what was asked for.

    Raises:
        AnalyticsError: There are too few events for so many groups, members or findings.
    """
    wanted = settings
    budget = wanted.events / wanted.groups - wanted.members
    sampled = wanted.members + wanted.partitions
    active_s = budget / (sampled + 2 * BATCHES_PER_SECOND * wanted.members)
    if wanted.hours is not None:
        active_s = min(active_s, wanted.hours * 3600)
    if active_s < ACTIVE_S_MIN:
        raise AnalyticsError(_too_few(wanted))
    spread = wanted.hours is not None and wanted.hours * 3600 >= 2 * active_s
    blocks = max(1, int(active_s) // BLOCK_S) if spread else 1
    block_s = min(BLOCK_S, int(active_s)) if spread else int(active_s)
    period_s = int(wanted.hours * 3600 / blocks) if spread and wanted.hours else block_s
    slots = int((budget - sampled * blocks * block_s) / (2 * wanted.partitions * blocks))
    # About half a second, at most some batches.
    in_flight = max(1, min(IN_FLIGHT_MAX, round(slots / block_s / 2)))
    if slots < 2 * in_flight:
        raise AnalyticsError(_too_few(wanted))
    plan = Plan(wanted, blocks, block_s, period_s, slots, in_flight, make_pattern(wanted))
    rounds = plan.poison_rounds * wanted.groups * wanted.partitions
    if rounds < wanted.poison_keys:
        raise AnalyticsError(
            f"--poison-keys {wanted.poison_keys}: so few events have room for {rounds}; ask for "
            "more --events or fewer --partitions"
        )
    if wanted.lag_spikes >= plan.active_s:
        raise AnalyticsError(
            f"--lag-spikes {wanted.lag_spikes}: there are only {plan.active_s} seconds of traffic; "
            "ask for more --events"
        )
    return plan


def _too_few(wanted: GeneratorSettings) -> str:
    rate = wanted.members * (1 + 2 * BATCHES_PER_SECOND) + wanted.partitions
    least = math.ceil(wanted.groups * (wanted.members + ACTIVE_S_MIN * rate))
    hours = ACTIVE_S_MIN / 3600
    return (
        f"--events {wanted.events}: {wanted.groups} groups of {wanted.members} members and "
        f"{wanted.partitions} partitions need at least {least} events and {hours:.3f} hours; ask "
        "for more --events, or for fewer --groups or --members"
    )


def make_pattern(settings: GeneratorSettings) -> tuple[Slot, ...]:
    """The slots that repeat, each with its place in the log and what becomes of it."""
    draw = random.Random(settings.seed)
    again: dict[int, Slot] = {}
    pattern: list[Slot] = []
    offset = 0
    for number in range(PATTERN_SLOTS):
        before = again.pop(number, None)
        if before is not None:
            made = before._replace(
                slot=number, delivery_count=before.delivery_count + 1, next=offset
            )
        else:
            key = _key(number, settings)
            size = 1 if key else draw.randint(8, 48)
            made = Slot(number, offset, size, offset + size, 1, "", "", key, None)
            offset += size
        made = _with_outcome(made, fails_once=number % ONCE_SLOTS in (10, 15))
        if made.state == "available":
            again[number + RETRY_SLOTS] = made
        pattern.append(made)
    return tuple(pattern)


def _key(number: int, settings: GeneratorSettings) -> str:
    """Which keyed record a slot hands out for the first time, if any."""
    if settings.poison_keys and number % POISON_SLOTS == POISON_FIRST:
        return "poison"
    return "once" if number % ONCE_SLOTS == 10 else ""


def _with_outcome(slot: Slot, *, fails_once: bool) -> Slot:
    """What the member said of it."""
    if slot.key == "poison":
        last = slot.delivery_count == DELIVERY_LIMIT
        return slot._replace(
            outcome=RangeEvent.RELEASED.value,
            state="archived" if last else "available",
            reason="delivery_limit" if last else "ValueError",
        )
    if fails_once and slot.delivery_count == 1:
        return slot._replace(
            outcome=RangeEvent.RELEASED.value, state="available", reason="TimeoutError"
        )
    return slot._replace(outcome=RangeEvent.ACCEPTED.value, state="acknowledged", reason=None)


def truth(plan: Plan, rows: int, lost: dict[str, int]) -> dict[str, Any]:
    """What was planted, as `_truth.json` says it.

    Args:
        plan: The log.
        rows: Rows that were written.
        lost: Changes that were dropped, by group id.
    """
    wanted = plan.settings
    groups = range(wanted.groups)
    return {
        "rows": rows,
        "seed": wanted.seed,
        "first_time": START.isoformat(),
        "last_time": plan.time(plan.active_s - 1).isoformat(),
        "groups": [group_name(group) for group in groups],
        "members": wanted.members,
        "partitions": wanted.partitions,
        "changes": 2 * wanted.partitions * plan.slots_in_all,
        "starved": [
            {
                "group": group_name(group),
                "member": member_name(group, wanted.members - 1 - number),
                "since": plan.time(plan.starved_from_s(group)).isoformat(),
            }
            for group in groups
            for number in range(plan.starved_in(group))
        ],
        "poison": [
            {"group": group_name(group), "keys": sorted(_poison_keys(plan, group))}
            for group in groups
            if wanted.poison_keys
        ],
        "lag_spikes": [
            {
                "group": group_name(spike.group),
                "topic": topic_name(spike.group),
                "partition": spike.partition,
                "since": plan.time(spike.first_s).isoformat(),
                "seconds": spike.seconds,
                "records": spike.records,
            }
            for spike in plan.spikes()
        ],
        "lost": lost,
    }


def poison_name(number: int) -> str:
    """A key whose records always fail."""
    return f"poison-{number}"


def _poison_keys(plan: Plan, group: int) -> set[str]:
    """The poison keys of a group; as `rows` gives them out."""
    wanted = plan.settings
    found: set[int] = set()
    for turn in range(plan.poison_rounds):
        first = (turn * wanted.groups + group) * wanted.partitions
        found.update((first + i) % wanted.poison_keys for i in range(wanted.partitions))
        if len(found) == wanted.poison_keys:
            break
    return {poison_name(number) for number in found}
