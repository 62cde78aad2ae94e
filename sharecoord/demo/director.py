"""The scenes: workers at work, one of them killed, the coordinator killed, the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from sharecoord.core.states import RecordState
from sharecoord.demo.judge import CoordinatorKill, Evidence, WorkerKill
from sharecoord.demo.ledger import LedgerReader, Tally
from sharecoord.demo.plan import DELIVERY_LIMIT, Plan
from sharecoord.demo.stage import PacedProducer, Stage
from sharecoord.demo.window_view import WindowState, read_window
from sharecoord.devenv.errors import DevenvError

TICK_S: Final = 0.05
SHOW_EVERY_S: Final = 0.2
JOIN_TIMEOUT_S: Final = 60.0
STALL_S: Final = 30.0
"""When nothing has moved for so long, the demo ends and says what is missing."""

CALM, FIRST_BURST, MIDDLE, SECOND_BURST = 0.2, 0.35, 0.6, 0.8
"""Parts of the records that are in the log: when the worker's turn comes, when it is killed, when
the coordinator's turn comes, when that is killed; the rest is produced while it is down. Bursts
come at once, so that every worker holds some when the kill comes."""

MISSED_S: Final = 2.0
"""A burst is repeated when nothing has moved for so long and nobody has enough records."""

BURST_MORE: Final = 0.1
"""Part of the records in such a further burst."""

HELD_AT_KILL: Final = 4
"""Least number of records that the killed worker must hold: one in work, others behind it."""

PER_WORKER_AT_KILL: Final = 2
"""Average number of records that workers must hold when the coordinator is killed."""

PRODUCER_SPEED: Final = 0.8
"""Part of the workers' speed: the first part takes a while and the backlog stays small."""


@dataclass(frozen=True, slots=True)
class Scene:
    """State of the demo at a moment, as the screen shows it.

    `window` is the share-partition as the store has it. `archived` are offsets with their reasons,
    also below the window. `dead` are the workers that were killed.
    """

    title: str
    elapsed_s: float
    log_end: int
    window: WindowState
    archived: dict[int, str]
    tally: Tally
    dead: frozenset[str]
    coordinator_up: bool


class Screen(Protocol):
    """A view of the demo."""

    def event(self, text: str, elapsed_s: float) -> None:
        """Shows that something happened, in a sentence."""

    def show(self, scene: Scene) -> None:
        """Shows the present state."""


class Director:
    """Plays the demo once."""

    def __init__(self, plan: Plan, stage: Stage, screen: Screen) -> None:
        self._plan = plan
        self._stage = stage
        self._screen = screen
        self._tally = Tally()
        self._readers = {name: LedgerReader(stage.ledger(name)) for name in plan.members}
        self._window = WindowState()
        self._archived: dict[int, str] = {}
        self._producer: PacedProducer | None = None
        self._started_s = time.monotonic()
        self._shown_s = 0.0
        self._title = ""
        self._dead: frozenset[str] = frozenset()
        self._coordinator_up = False
        self._worker_kill: WorkerKill | None = None
        self._coordinator_kill: CoordinatorKill | None = None
        self._moved: tuple[object, float] = (None, 0.0)

    def play(self) -> Evidence:
        """Plays all scenes; SharecoordError when a process did not start, or ended by itself."""
        self._set_up()
        plan, stage = self._plan, self._stage
        speed = PRODUCER_SPEED * plan.orders_per_s
        self._producer = PacedProducer(stage.kafka, stage.topic, plan.orders(), speed)
        stalled_in = ""
        try:
            self._kill_worker(self._producer)
            self._kill_coordinator(self._producer)
            self._finish(self._producer)
        except StalledError:
            stalled_in = self._title
            self._say(f"nothing has moved for {STALL_S:.0f} s: giving up")
        finally:
            self._producer.close()
        stage.stop_workers()
        self._look()
        produced = self._producer.produced
        return Evidence(
            produced=produced.keys(),
            entries=self._tally.entries,
            delivery_limit=DELIVERY_LIMIT,
            unfinished=self._window.lag(len(produced)),
            stored_reasons=self._archived,
            members=[name for name in plan.members if name not in self._dead],
            worker_kill=self._worker_kill,
            coordinator_kill=self._coordinator_kill,
            stalled_in=stalled_in,
        )

    # -- the scenes -----------------------------------------------------------------------------

    def _set_up(self) -> None:
        stage, plan = self._stage, self._plan
        self._title = "Starting Kafka, the coordinator and the workers"
        self._say(f"Kafka: {stage.kafka_kind}")
        stage.start_kafka()
        self._say(f"Kafka is at {stage.kafka}; starting the coordinator, its state is in SQLite")
        stage.start_coordinator()
        stage.start_workers(plan.members)
        stage.coordinator.wait_ready()
        self._coordinator_up = True
        deadline_s = time.monotonic() + JOIN_TIMEOUT_S
        while len(self._tally.joined) < plan.workers:
            self._tick()
            if time.monotonic() > deadline_s:
                missing = sorted(set(plan.members) - self._tally.joined)
                raise DevenvError(f"workers did not join in time: {', '.join(missing)}")
        self._say(f"{plan.workers} workers, each a process of its own, share ONE partition")

    def _kill_worker(self, producer: PacedProducer) -> None:
        plan, tally, victim = self._plan, self._tally, self._plan.victim
        self._title = "Workers at work"
        producer.allow(round(CALM * plan.records))
        self._until(lambda: producer.idle)
        self._burst_until(
            lambda: len(tally.in_hand[victim]) >= HELD_AT_KILL, producer, FIRST_BURST, MIDDLE
        )
        pid = self._stage.kill_worker(victim)
        killed_s = time.monotonic()
        self._dead = frozenset({victim})
        self._look()
        held = dict(tally.in_hand.pop(victim, {}))
        self._worker_kill = WorkerKill(victim, killed_s, held)
        self._title = f"Worker {victim} is dead; its {len(held)} records are still locked for it"
        self._say(f"kill -9 {pid}: worker {victim}, in the middle of {len(held)} records")
        producer.allow(round(MIDDLE * plan.records))
        self._until(lambda: all(self._is_back(each, count) for each, count in held.items()))
        waited_s = time.monotonic() - killed_s
        self._say(
            f"all {len(held)} records of {victim} are with other workers, {waited_s:.1f} s later"
        )

    def _is_back(self, offset: int, count: int) -> bool:
        limit_reached = count >= DELIVERY_LIMIT
        return limit_reached or self._tally.highest_count.get(offset, 0) > count

    def _kill_coordinator(self, producer: PacedProducer) -> None:
        plan, tally, stage = self._plan, self._tally, self._stage
        self._title = "Workers at work"
        alive = len(plan.members) - len(self._dead)
        self._until(lambda: producer.idle)
        wanted = PER_WORKER_AT_KILL * alive
        self._burst_until(
            lambda: sum(map(len, tally.in_hand.values())) >= wanted, producer, SECOND_BURST, 1.0
        )
        stage.coordinator.kill()
        killed_s = time.monotonic()
        self._coordinator_up = False
        self._look()
        held = sum(len(records) for records in tally.in_hand.values())
        self._title = "The coordinator is dead; workers go on with what they hold"
        self._say(f"kill -9: the coordinator, while workers hold {held} records")
        producer.allow(plan.records)
        stage.coordinator.launch()
        self._until(lambda: stage.coordinator.ready)
        ready_s = time.monotonic()
        self._coordinator_up = True
        waited_s = ready_s - killed_s
        self._title = "The coordinator is back; the locks are as they were"
        self._say(f"the coordinator serves again, {waited_s:.1f} s after the kill")
        self._coordinator_kill = CoordinatorKill(killed_s, ready_s)

    def _burst_until(
        self, enough: Callable[[], bool], producer: PacedProducer, part: float, most: float
    ) -> None:
        """Produces part after part of the records, each at once, until workers hold enough.

        On a busy machine workers may be done with a burst between two looks; then more follows.
        """
        while True:
            wanted = round(part * self._plan.records)
            producer.allow(wanted, at_once=wanted - len(producer.produced))
            self._until(lambda: producer.idle)
            try:
                self._until(enough, still_s=MISSED_S if part < most else STALL_S)
            except StalledError:
                if part >= most:
                    raise
                part = min(most, part + BURST_MORE)
            else:
                return

    def _finish(self, producer: PacedProducer) -> None:
        records = self._plan.records
        self._until(lambda: producer.idle and len(producer.produced) == records)
        self._until(lambda: self._window.lag(records) == 0 and self._window.start_offset > 0)
        self._title = "Everything is finished"
        self._show()

    # -- inside ---------------------------------------------------------------------------------

    def _until(self, done: Callable[[], bool], still_s: float = STALL_S) -> None:
        """Ticks until something is done; StalledError when nothing has moved for `still_s`."""
        self._moved = (None, time.monotonic())
        while not done():
            self._tick()
            if time.monotonic() - self._moved[1] > still_s:
                raise StalledError

    def _tick(self) -> None:
        time.sleep(TICK_S)
        self._stage.check_workers()
        if self._coordinator_up:
            _ = self._stage.coordinator.ready  # raises when it has ended
        self._look()
        signs = (len(self._tally.entries), self._window.start_offset, self._window.finished_count)
        if signs != self._moved[0]:
            self._moved = (signs, time.monotonic())
        if time.monotonic() - self._shown_s > SHOW_EVERY_S:
            self._show()

    def _look(self) -> None:
        """Reads the new lines of the ledgers, and the store."""
        for reader in self._readers.values():
            self._tally.add(reader.read())
        window = read_window(self._stage.store, self._stage.topic)
        if window is None:
            return
        self._window = window
        for each in window.ranges:
            if each.state is RecordState.ARCHIVED:
                self._archived |= dict.fromkeys(range(each.first, each.last + 1), each.reason)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def _say(self, text: str) -> None:
        self._screen.event(text, self._elapsed_s())
        self._show()

    def _show(self) -> None:
        self._shown_s = time.monotonic()
        self._screen.show(
            Scene(
                self._title,
                self._elapsed_s(),
                len(self._producer.produced) if self._producer else 0,
                self._window,
                self._archived,
                self._tally,
                self._dead,
                self._coordinator_up,
            )
        )


class StalledError(Exception):
    """Nothing moves any more; the judge says what is missing."""
