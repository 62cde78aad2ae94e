"""The plan of a generated event log, in numbers: no Spark.

A group has `partitions` share-partitions; each hands out a batch per *slot*. A slot is an acquired
range and its outcome, two changes. The same pattern of `PATTERN_SLOTS` slots repeats: sizes,
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
"""Rate of a member, unless --hours asks for more events in less time."""
BLOCK_S: Final = 60
"""Traffic comes in stretches of this length when --hours is longer than what the events fill."""
ACTIVE_S_MIN: Final = 30
"""In shorter logs starvation could not be told from a pause."""
PATTERN_SLOTS: Final = 1024
RETRY_SLOTS: Final = 12
"""Number of slots after which a failed delivery is repeated; more than are in flight."""
IN_FLIGHT_MAX: Final = 8
DELIVERY_LIMIT: Final = 5
POISON_SLOTS: Final = 256
POISON_FIRST: Final = 32
"""Slot of the first delivery of a poison record, in each `POISON_SLOTS`."""
ONCE_SLOTS: Final = 64
"""Number of slots in which one record and one range fail once."""
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
    """Settings of a generated event log."""

    events: int
    """Most rows; slightly fewer are made, so that all groups are alike."""
    groups: int = 10
    """Share groups; each has a topic of its own."""
    members: int = 20
    """Members of each group."""
    partitions: int = 8
    """Partitions of each topic."""
    seed: int = 1
    """The same seed and settings give the same rows."""
    hours: float | None = None
    """From the first to the last event; None: as long as it takes at a usual rate."""
    skew: float = 0.0
    """Zipf exponent over the members; 0: batches go round."""
    starved: int = 0
    """Members, over all groups, that get no records from some time on."""
    poison_keys: int = 0
    """Keys whose records always fail."""
    lag_spikes: int = 0
    """Times of high lag, each on one partition."""
    drop: float = 0.0
    """Fraction of changes that are missing."""

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
    """Numbers that follow from the settings."""

    settings: GeneratorSettings
    blocks: int
    """Number of stretches of traffic."""
    block_s: int
    """Length of a stretch of traffic."""
    period_s: int
    """Time from the beginning of one stretch of traffic to the next."""
    slots: int
    """Slots per share-partition and block."""
    in_flight: int
    """Slots of a share-partition in flight at a time."""
    pattern: tuple[Slot, ...] = field(repr=False)
    """The slots that repeat."""

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
        """Rate of a share-partition at which slots in flight end within the block."""
        return (self.slots + self.in_flight + 1) / self.block_s

    @property
    def pattern_records(self) -> int:
        """Records of one pattern."""
        return self.pattern[-1].next

    @property
    def rows(self) -> int:
        """Number of rows when no change is dropped."""
        wanted = self.settings
        each = 2 * wanted.partitions * self.slots_in_all + wanted.members
        samples = (wanted.members + wanted.partitions) * self.active_s
        return wanted.groups * (each + samples)

    @property
    def demand(self) -> int:
        """Records that each member wants per second: twice its part."""
        wanted = self.settings
        size = self.pattern_records / PATTERN_SLOTS
        return max(1, round(2 * size * self.slots_per_s * wanted.partitions / wanted.members))

    def starved_in(self, group: int) -> int:
        """Number of members of a group that starve: its last ones."""
        wanted = self.settings
        return (wanted.starved + wanted.groups - 1 - group) // wanted.groups

    def starved_from_s(self, group: int) -> int:
        """Active second from which on they get no records: from a third to a half of the time."""
        return self.active_s // 3 + (group * self.active_s // 6) // self.settings.groups

    def wall_s(self, active_s: int) -> int:
        """Seconds from the start to an active second."""
        return (active_s // self.block_s) * self.period_s + active_s % self.block_s

    def time(self, active_s: int) -> datetime:
        """When an active second begins."""
        return START + timedelta(seconds=self.wall_s(active_s))

    def spikes(self) -> list[Spike]:
        """Times of high lag, one after the other, on groups and partitions in turn."""
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
    """Chooses rates and times such that the number of rows is nearly that of the settings.

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
    """The slots that repeat, each with its place in the log and its outcome."""
    draw = random.Random(settings.seed)
    again: dict[int, Slot] = {}
    pattern: list[Slot] = []
    offset = 0
    for number in range(PATTERN_SLOTS):
        before = again.pop(number, None)
        if before is not None:
            count = before.delivery_count + 1
            slot = before._replace(slot=number, delivery_count=count, next=offset)
        else:
            key = _key(number, settings)
            size = 1 if key else draw.randint(8, 48)
            slot = Slot(number, offset, size, offset + size, 1, "", "", key, None)
            offset += size
        slot = _with_outcome(slot, fails_once=number % ONCE_SLOTS in (10, 15))
        if slot.state == "available":
            again[number + RETRY_SLOTS] = slot
        pattern.append(slot)
    return tuple(pattern)


def _key(number: int, settings: GeneratorSettings) -> str:
    """Kind of the keyed record that a slot hands out for the first time; empty without one."""
    if settings.poison_keys and number % POISON_SLOTS == POISON_FIRST:
        return "poison"
    return "once" if number % ONCE_SLOTS == 10 else ""


def _with_outcome(slot: Slot, *, fails_once: bool) -> Slot:
    """Adds the outcome of a slot: the member's acknowledgement and the state after it."""
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
    """The planted findings, for `_truth.json`; `lost` counts dropped changes by group."""
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


def _poison_keys(plan: Plan, group: int) -> set[str]:
    """The poison keys of a group; `rows` hands them out by the same rule."""
    wanted = plan.settings
    numbers: set[int] = set()
    for turn in range(plan.poison_rounds):
        first = (turn * wanted.groups + group) * wanted.partitions
        numbers.update((first + i) % wanted.poison_keys for i in range(wanted.partitions))
        if len(numbers) == wanted.poison_keys:
            break
    return {f"poison-{number}" for number in numbers}
