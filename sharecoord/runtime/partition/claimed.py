"""A share-partition that this process has claimed: the core's state, and the way into commits.

All parts of a share-partition's actor share it: what follows the log, what has payloads read, and
the books that ride on its commits.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod

from sharecoord.core.changes import PartitionCommit, PartitionKey, PartitionRow
from sharecoord.core.partition.decisions import Decision
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.errors import SharecoordError
from sharecoord.eventlog.schema import RangeEvent
from sharecoord.runtime.kernel.budget import GroupBudget
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.record_cache import RecordCache
from sharecoord.runtime.partition.recovery import commit_of, lock_left_max_ms


class ActorState(enum.Enum):
    """Whether a share-partition is served."""

    LOADING = "loading"
    ACTIVE = "active"
    LEAVING = "leaving"
    """On its way to another coordinator: it still has its state, and hands out nothing."""
    STOPPED = "stopped"
    CLOSED = "closed"


class Book(ABC):
    """What is stored beside the states of records, in the same commits.

    A book belongs to one share-partition and lives for one incarnation after the other.
    """

    @abstractmethod
    def note(self, decision: Decision) -> None:
        """Takes in a decision that is about to be carried out."""

    @abstractmethod
    def into(self, commit: PartitionCommit) -> None:
        """Adds what changed since the last commit to the next one."""

    @abstractmethod
    def end(self) -> None:
        """Forgets everything: the incarnation has ended, and the store knows what holds."""


class ClaimedPartition(ABC):
    """See the module. Its methods run on the loop and do not wait."""

    def __init__(
        self, key: PartitionKey, partition_id: int, context: Context, budget: GroupBudget
    ) -> None:
        self.key = key
        self.partition_id = partition_id
        self.context = context
        self.clock = context.clock
        self.budget = budget
        self.cache = RecordCache(budget)
        self.state = ActorState.LOADING
        self.partition: SharePartition | None = None
        """The core's state; None = no incarnation lives."""
        self.settings = PartitionSettings()
        """As of the last incarnation: answers of its commits still go out when it has ended."""
        self.incarnation = self.state_epoch = self.replay_epoch = 0
        self.generation = 0
        """Grows when an incarnation ends; what an older one asked for is void."""
        self.reads_committed = False
        """Whether records of aborted transactions, and of open ones, are left out."""
        self._raises_state_epoch = False
        """The next commit begins a new state epoch."""
        self.dead_letters = 0
        """Sent to the dead-letter topic since the process began."""

    def _begin(self, partition: SharePartition, row: PartitionRow, incarnation: int) -> None:
        """An incarnation begins, with the core's state as it was loaded."""
        self.partition, self.settings = partition, partition.settings
        self.incarnation = incarnation
        self.state_epoch, self.replay_epoch = row.state_epoch, row.replay_epoch
        self._raises_state_epoch = False
        self.state = ActorState.ACTIVE
        self.cache.clear()

    def _end(self, state: ActorState) -> None:
        """The incarnation ends, if one lives: what it asked for is void."""
        self.generation += 1
        self.state = state
        self.partition = None

    def _commit_of(self, partition: SharePartition) -> PartitionCommit:
        """What the next commit stores of the states of records, and of the epochs."""
        commit = commit_of(partition, self.partition_id, self.state_epoch, self.clock)
        commit.raises_state_epoch, self._raises_state_epoch = self._raises_state_epoch, False
        return commit

    def begin_state_epoch(self) -> None:
        """What was decided until now is void for everybody: the next commit says so."""
        self._raises_state_epoch, self.replay_epoch = True, self.state_epoch + 1

    @property
    def lock_left_max_ms(self) -> int:
        """No lock that was granted here can last longer, whatever recoveries add to it."""
        return lock_left_max_ms(self.settings)

    @property
    def pending_ranges(self) -> int:
        """Changed ranges that are not stored yet."""
        return len(self.partition.window.dirty) if self.partition else 0

    @abstractmethod
    def take_commit(self) -> PartitionCommit | None:
        """What must be stored since the last call."""

    @abstractmethod
    def drop(self, error: SharecoordError) -> None:
        """Ends the incarnation, because a commit failed or was fenced; then a new claim."""

    @abstractmethod
    def commit(self, decision: Decision, ended_by: RangeEvent = RangeEvent.RELEASED) -> None:
        """Carries out a decision, and has what it changes stored."""

    @abstractmethod
    def on_time(self) -> None:
        """Looks at the clock: ends locks, makes records due, has them dispatched."""

    @abstractmethod
    def wake(self) -> None:
        """Has the dispatcher look whether there is something to hand out."""

    @abstractmethod
    async def confirmed(self) -> None:
        """Waits until what was read until now is known to be of the partition's own topic."""

    @abstractmethod
    def letters_arrived(self, first: int, last: int) -> None:
        """Kafka has the dead letters of [first, last]."""
