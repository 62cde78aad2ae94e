"""A share-partition that this process has claimed: the core's state, and the way into commits.

All parts of a share-partition's actor share it: the log follower, the payloads, and the books that
ride on its commits.
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
    """The state of an actor: whether its share-partition is served."""

    LOADING = "loading"
    ACTIVE = "active"
    LEAVING = "leaving"
    """On its way to another coordinator: it still has its state, and hands out nothing."""
    STOPPED = "stopped"
    CLOSED = "closed"


class Book(ABC):
    """Rows that are stored beside the states of records, in the same commits.

    A book belongs to one share-partition and lives for one incarnation after the other.
    """

    @abstractmethod
    def note(self, decision: Decision) -> None:
        """Takes in a decision that is about to be carried out."""

    @abstractmethod
    def into(self, commit: PartitionCommit) -> None:
        """Adds the changes since the last commit to the next one."""

    @abstractmethod
    def end(self) -> None:
        """Forgets everything: the incarnation has ended, and the store has the rows."""


class ClaimedPartition(ABC):
    """The state that all parts of an actor share. Its methods run on the loop and do not wait."""

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
        """Settings of the last incarnation: answers of its commits go out after its end, too."""
        self.incarnation = self.state_epoch = self.replay_epoch = 0
        self.generation = 0
        """Grows when an incarnation ends; requests of older ones are void."""
        self.reads_committed = False
        """Whether records of aborted and of open transactions are left out."""
        self._raises_state_epoch = False
        """Whether the next commit begins a new state epoch."""
        self.dead_letters = 0
        """Letters sent to the dead-letter topic since the process began."""

    def _begin(self, partition: SharePartition, row: PartitionRow, incarnation: int) -> None:
        """An incarnation begins, with the core's state as it was loaded."""
        self.partition, self.settings = partition, partition.settings
        self.incarnation = incarnation
        self.state_epoch, self.replay_epoch = row.state_epoch, row.replay_epoch
        self._raises_state_epoch = False
        self.state = ActorState.ACTIVE
        self.cache.clear()

    def _end(self, state: ActorState) -> None:
        """The incarnation ends, if one lives: its requests are void."""
        self.generation += 1
        self.state = state
        self.partition = None

    def _commit_of(self, partition: SharePartition) -> PartitionCommit:
        """The next commit, with states of records and epochs."""
        commit = commit_of(partition, self.partition_id, self.state_epoch, self.clock)
        commit.raises_state_epoch, self._raises_state_epoch = self._raises_state_epoch, False
        return commit

    def begin_state_epoch(self) -> None:
        """Begins a state epoch with the next commit: decisions until now are void everywhere."""
        self._raises_state_epoch, self.replay_epoch = True, self.state_epoch + 1

    @property
    def lock_left_max_ms(self) -> int:
        """The longest time that a lock granted here can last, with all that recoveries add."""
        return lock_left_max_ms(self.settings)

    @property
    def pending_ranges(self) -> int:
        """Changed ranges that are not stored yet."""
        return len(self.partition.window.dirty) if self.partition else 0

    @abstractmethod
    def take_commit(self) -> PartitionCommit | None:
        """The changes since the last call."""

    @abstractmethod
    def drop(self, error: SharecoordError) -> None:
        """Ends the incarnation, because a commit failed or was fenced; then a new claim."""

    @abstractmethod
    def commit(self, decision: Decision, ended_by: RangeEvent = RangeEvent.RELEASED) -> None:
        """Carries out a decision, and has its changes stored."""

    @abstractmethod
    def on_time(self) -> None:
        """Ends locks and waits whose time has come, and asks for dispatch."""

    @abstractmethod
    def wake(self) -> None:
        """Asks the dispatcher to look at the share-partition."""

    @abstractmethod
    async def confirmed(self) -> None:
        """Waits until records that were read are known to be of the partition's own topic."""

    @abstractmethod
    def letters_arrived(self, first: int, last: int) -> None:
        """Kafka has the dead letters of [first, last]."""
