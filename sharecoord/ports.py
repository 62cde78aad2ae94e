"""Ports of the coordinator: contracts of everything outside that the runtime uses.

Adapters implement these; `sharecoord.app` alone picks them; one suite per port in tests/contract
runs against every implementation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from sharecoord.core.changes import (
    CommitBatch,
    CommitResult,
    DeadLetter,
    DelayedPlace,
    FleetView,
    GroupRow,
    InFlight,
    InFlightRow,
    JoinRefusal,
    KeptPayload,
    LoadedPartition,
    MemberRow,
    PartitionChange,
    PartitionClaim,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
    PartitionStart,
    PausesChanged,
    Place,
)
from sharecoord.core.delivery import Delivery
from sharecoord.core.dispatch.pauses import Pause, PauseScope
from sharecoord.core.fleet.peering import GatewayItem, OwnerItem
from sharecoord.core.letters.dead_letters import OutboxMark
from sharecoord.core.letters.lanes import Mark, Marking, Replayed, Selection, SelectionResult
from sharecoord.core.records import RecordChunk
from sharecoord.errors import SharecoordError, UnauthorizedError
from sharecoord.eventlog.schema import EventBlock


class Store(Protocol):
    """Durable state. Blocking; every call is one transaction: it happens whole or not at all.

    Called from one thread at a time (the committer's), except `renew_lease` and the methods under
    "reads for people", which may run beside a commit on connections of their own.

    Errors of every method:
        StoreUnavailableError: Nothing was changed; try again.
        StoreOutcomeUnknownError: The connection broke while committing: it may have happened.
        StoreFatalError: I/O error or corruption: the process must end.
    """

    def open(
        self,
        *,
        coordinator_id: str,
        cluster_id: str,
        address: str,
        version: str,
        secret: bytes = b"",
    ) -> None:
        """Creates or checks the schema, takes the store for this coordinator.

        `secret` stands in the lease row, where the other coordinators read it; b"" = none.

        Raises:
            StoreVersionError: The schema is of a newer release (or an older one that needs
                `sharecoord store migrate`; migrations that are safe run by themselves).
            StoreClusterMismatchError: The store belongs to another Kafka cluster; both are named.
            StoreInUseError: A live coordinator holds it (standalone mode).
        """

    def close(self) -> None:
        """Gives up the lease and every connection. Never raises."""

    def renew_lease(self, *, duration_ms: int) -> int:
        """Keeps this coordinator's lease alive; returns the store's clock in ms.

        It does not wait for a commit that runs: that one may take longer than the lease lasts.

        Raises:
            StoreInUseError: The lease is gone: another coordinator took the store.
        """

    def announce(self, *, address: str, peer_address: str, draining: bool = False) -> None:
        """Writes where this coordinator is reached, and whether it goes; the lease stays as it is.

        `open` has made the row with no peer address and not draining. Addresses have 255
        characters at most.

        Raises:
            StoreInUseError: As `renew_lease`.
        """

    def read_fleet(self) -> FleetView:
        """The coordinators that live, announced or not, and the epochs of all groups."""

    def now_ms(self) -> int:
        """The store's clock, milliseconds since the epoch."""

    # -- the hot path ---------------------------------------------------------------------------

    def fits(self, payload: Sequence[bytes | None]) -> bool:
        """Whether a row may hold these bytes; does not block, so the loop may call it.

        A row that does not fit makes every commit fail that has it.
        """

    def commit(self, batch: CommitBatch) -> CommitResult:
        """Writes a group commit.

        Locks the partitions' rows in order of id and reads their epochs; a partition whose
        owner epoch or state epoch differs is left out and reported; the rest is written and
        durable when this returns. A retry of a whole batch after StoreUnavailableError is safe.
        """

    # -- partitions -----------------------------------------------------------------------------

    # Those that take several do it in one transaction, rows locked in order of id.

    def open_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionRow]:
        """The rows of share-partitions, made on first use (uninitialised, owned by nobody).

        New ones get their ids in the order of `keys`. A new one starts at zero exactly when at this
        moment the group has an initialised share-partition of a topic of this name, under whatever
        topic id, closed or not (design 5.7). So the partitions of a topic's first use belong into
        one call, before one of them is initialised.
        """

    def claim_partitions(self, claims: Sequence[PartitionClaim]) -> list[LoadedPartition | None]:
        """Makes this coordinator the owner: owner epoch + 1, `incarnation` noted; then reads.

        With `previous_incarnation` (a reload) a claim succeeds only if the row still has it.
        Without, only if the row is unowned, was owned by this coordinator's id, or its owner's
        lease is dead. Waits for the row lock of a commit of ours whose outcome is unknown. No
        share-partition stands in `claims` twice.

        Returns:
            The states after the claims; None where the claim failed (fenced: stand down).
        """

    def read_delayed(self, partition_id: int, *, after: DelayedPlace, max_rows: int) -> InFlight:
        """Delayed ranges that are due behind a place, in that order: by time, then by offset."""

    def read_kept(self, partition_id: int, offsets: Sequence[int]) -> list[KeptPayload]:
        """The payloads that are stored of these records, by offset."""

    def initialize_partitions(self, starts: Sequence[PartitionStart]) -> list[bool]:
        """Writes the resolved start offsets of uninitialised share-partitions (design 5.7).

        Returns:
            False where fenced; True also where it was initialised before (the caller reloads).
        """

    def release_partitions(self, releases: Sequence[PartitionRelease]) -> None:
        """Gives up ownership; no effect on those that are fenced or gone."""

    def close_partition(self, partition_id: int, *, owner_epoch: int) -> None:
        """Marks the share-partition of a deleted topic as closed; its kept payloads go."""

    def stop_partition(self, partition_id: int, *, owner_epoch: int, reason: str) -> None:
        """Marks a share-partition as not to be served until an operator decides."""

    # -- groups and members ---------------------------------------------------------------------

    def load_groups(self) -> list[GroupRow]:
        """All groups, in order of id."""

    def save_group_config(
        self, group_id: str, *, set_values: Mapping[str, str], deleted: Sequence[str]
    ) -> GroupRow:
        """Changes overrides and raises the group epoch; makes the group when it is new."""

    def save_blocked_keys(
        self, group_id: str, *, blocked: Mapping[bytes, str], unblocked: Sequence[bytes]
    ) -> GroupRow:
        """Blocks and unblocks keys, and raises the group epoch; makes the group when it is new.

        `blocked` gives the reason of each. A key that is blocked already keeps its time.

        Raises:
            LimitExceededError: The group would have more than `limits.BLOCKED_KEYS_MAX`; nothing
                was changed.
        """

    def change_pauses(
        self, group_id: str, *, pause: Sequence[Pause] = (), resume: Sequence[PauseScope] = ()
    ) -> PausesChanged | None:
        """Pauses and resumes (`pauses.changed`); raises the group epoch if that changes anything.

        None = there is no such group.
        """

    def ensure_group(self, group_id: str, *, made_by: str = "") -> GroupRow:
        """The row of a group, made on first use.

        The principal named `made_by` has made it, unless the row names another one.
        """

    def join_members(self, members: Sequence[MemberRow]) -> list[int | JoinRefusal]:
        """Saves members, each with member epoch = stored + 1; returns those epochs.

        Compare-and-increment: a later join fences every earlier one. What is refused leaves the
        stored row as it is. All in one transaction; no member stands in it twice. A new member
        begins with 1, in a fleet with the store's clock in ms: another coordinator may still have
        the session of a member that was removed and joins again, and must not take the new stream
        for an older one.
        """

    def load_members(self) -> list[MemberRow]:
        """All members of all groups."""

    # -- operations under traffic (design 5.11): rows locked in order of id ---------------------

    def reset_partitions(
        self, heads: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, PartitionRow]:
        """Sets start offsets: state epoch + 1, in-flight rows cleared, rows made when missing.

        `heads` gives the new SPSO per share-partition. Owners notice at their next commit.
        """

    def change_partition(self, key: PartitionKey, change: PartitionChange) -> bool:
        """Changes a share-partition, whoever owns it: locked, read, decided on, written.

        State epoch + 1, as `change.decide` says with `raises_state_epoch`; the owner notices at its
        next commit. What is decided may be decided again, on what is there by then.

        Returns:
            False = there is no such share-partition.
        """

    def delete_topics(self, group_id: str, topics: Sequence[str]) -> int:
        """Deletes the share-partitions of whole topics of a group; returns how many.

        Those with an outbox are emptied and stay, uninitialised and not starting at zero, until it
        is done: dead letters were promised to their topic, and outlive their group's offsets
        (design 5.11).
        """

    def delete_group(self, group_id: str) -> bool:
        """Deletes a group with its members and share-partitions; False = there was none.

        As with `delete_topics`, an outbox outlives it: a group that is made again under this name
        delivers it. What only an outbox is left of does not count as a group.
        """

    # -- lanes and replays (docs/decisions/0019) ------------------------------------------------

    def take_in(self, selections: Sequence[Selection], marking: Marking) -> list[SelectionResult]:
        """Marks letters as redriven or discarded; redriven ones are added to their lanes.

        Rows are made when missing. What an earlier redrive has not finished stays, locks included;
        letters that bear a mark are left out unless `marking` says otherwise. State epoch + 1, so
        owners notice; the groups' epochs grow. No lane stands in `selections` twice.

        Returns:
            What became of each selection, in their order.
        """

    def withdraw(self, keys: Sequence[PartitionKey]) -> list[SelectionResult]:
        """Takes back, from lanes, what was selected and never handed out; its marks go with it."""

    def make_replay(
        self, parts: Sequence[Replayed], *, config: Mapping[str, str] | None = None
    ) -> bool:
        """Makes the bounded share-partitions of a replay, all of one group; makes the group.

        With `config` these become all its overrides.

        Returns:
            False, and nothing was changed: the group has share-partitions that are no finished
            replay.
        """

    def list_lanes(self) -> list[PartitionRow]:
        """The lanes of all groups that have something to hand out, in any order."""

    def read_marks(self, group_id: str, topic: str, topic_id: str, partition: int) -> list[Mark]:
        """The marks of a dead-letter topic's partition for a group, by first offset."""

    # -- reads for people: committed state ------------------------------------------------------

    def list_outboxes(self) -> list[PartitionRow]:
        """Share-partitions with dead letters that wait for their topic, closed ones too, by id."""

    def read_dead_letters(
        self, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[DeadLetter]:
        """The outbox of a share-partition from an offset on, in order."""

    def list_partitions(self, group_id: str) -> list[PartitionRow]:
        """The share-partitions of a group, closed ones included, by topic and partition."""

    def read_in_flight(
        self, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[InFlightRow]:
        """Ranges whose last offset is `from_offset` or later, in order."""

    def checkpoint_sizes(self, partition_id: int, first: int, last: int) -> dict[int, int]:
        """Bytes of the checkpoints in [first, last], by offset, in order."""

    def count_in_flight(self, partition_id: int) -> dict[int, int]:
        """Number of records (not ranges) by state number; delayed ones under `DELAYED`."""


class LogSink(Protocol):
    """Listener to the records of one partition. Calls come on the loop, in order of offset."""

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Records, with proven coverage from where the former call ended."""

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        """Everything below `end_offset` was read: the log end, or the last stable offset.

        `last_epoch` is the leader epoch of the last batch below it, one without records for members
        (markers of transactions, what compaction emptied) included; -1 = the reader does not know.
        """

    def on_out_of_range(self) -> None:
        """The position does not exist (any more); reading stopped. Resolve and start again.

        Kafka also answers so when it has no leader epoch as high as the one that was shown, and
        none above it: the log is another one.
        """

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut, and may have grown again; reading stopped.

        Records from `end_offset` (0 or more) on are not those that were read. Below it the log has
        no leader epoch above `epoch`, where the reader had a higher one: `end_offset` may lie at or
        beyond the position, and then only the epoch was wrong. A reader that compares no epochs
        never calls it.
        """

    def on_gone(self) -> None:
        """The cluster does not have the partition; reading stopped."""


class LogReading(Protocol):
    """A running read of one partition."""

    @property
    def drained_s(self) -> float:
        """Loop time at which the reader had nothing left: what came after it was fetched later.

        In `LogSink.on_chunk` it is that of before these records.
        """

    def want_more(self, *, wanted: bool) -> None:
        """Back-pressure: after False, only chunks that are already under way may come."""

    def close(self) -> None:
        """Stops; the sink is not called again."""


class Stretch(NamedTuple):
    """A part of a partition's log."""

    partition: int
    first: int
    end: int
    """Exclusive."""


class LogReader(Protocol):
    """Reader of Kafka's records, the only one."""

    @property
    def open_bytes(self) -> int:
        """Memory beside the chunks: open compressed batches, and records on their way here."""

    def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        last_epoch: int,
        committed: bool,
        sink: LogSink,
    ) -> LogReading:
        """Reads from `offset` on, until closed.

        Args:
            topic: The topic.
            partition: Its partition.
            offset: Where to begin.
            last_epoch: The leader epoch of the last record before `offset`, which Kafka compares
                with its own; -1 = not known: nothing is compared.
            committed: Isolation level read_committed.
            sink: Who hears of the records.
        """

    async def reread(
        self, topic: str, partition: int, first: int, last: int, *, committed: bool
    ) -> list[RecordChunk]:
        """Reads [first, last] again; together the chunks cover the range.

        Raises:
            KafkaUnavailableError: Not within the time limit; try again.
            UnknownTopicOrPartitionError: The partition is gone.
            OffsetOutOfRangeError: `first` is below the log start.
        """

    def scan(
        self, topic: str, stretches: Sequence[Stretch]
    ) -> AsyncGenerator[tuple[int, RecordChunk], None]:
        """Reads stretches of a topic once, one after the other, for people: committed records.

        Close the generator (`contextlib.aclosing`) to stop. Chunks are small, so that whoever
        looks at each record leaves the loop to others between two of them.

        Yields:
            The partition, and records of it in order of offset.

        Raises:
            LimitExceededError: As many scans run as may.
            KafkaUnavailableError: Nothing came for too long; try again.
            UnknownTopicOrPartitionError: The partition is gone.
            OffsetOutOfRangeError: A stretch begins below the log start.
        """

    async def close(self) -> None:
        """Stops every read."""


class TopicInfo(NamedTuple):
    """A topic as the cluster knows it."""

    topic_id: str
    """32 hex digits, "" when the cluster has none."""
    partitions: tuple[int, ...]


class OffsetQuery(NamedTuple):
    """A place in a partition. `timestamp_ms` >= 0, or EARLIEST or LATEST."""

    topic: str
    partition: int
    timestamp_ms: int


class FoundOffset(NamedTuple):
    """What the leader of a partition found at a place."""

    offset: int
    """-1 = no record is so young."""
    timestamp_ms: int
    """That of the record; -1 at the ends of a log."""
    leader_epoch: int


def end_queries(places: Iterable[Place], *times_ms: int) -> list[OffsetQuery]:
    """Questions for both ends of each place's log, and for where it was at these times."""
    times = (EARLIEST, LATEST, *times_ms)
    return [OffsetQuery(*place, at) for place in places for at in times]


LOCK_TIMEOUT_MS: Final = 2_000
"""How long a store's transaction waits for rows that another one has locked, unless told."""

FIRST_LEASE_MS: Final = 4_000
"""The lease that `Store.open` takes: until the first renewal."""

DELAYED: Final = -1
"""Stands for the state of AVAILABLE records that are not due, in `Store.count_in_flight`."""

EARLIEST = -2
LATEST = -1


class TopicCatalog(Protocol):
    """Topics of the cluster, with the ends of their logs; each topic is answered by itself."""

    @property
    def refusals(self) -> Mapping[str, UnauthorizedError]:
        """Topics that Kafka refused at the last request; they may exist."""

    @property
    def brokers(self) -> int:
        """Number of brokers, as far as is known; at least 1."""

    async def cluster_id(self) -> str:
        """Kafka's cluster id; "" when it has none."""

    async def names(self) -> list[str]:
        """All topics that Kafka shows us, sorted.

        Raises:
            KafkaUnavailableError: No answer in time.
        """

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        """The topics that exist; unknown and refused ones are left out."""

    async def look(self, topic: str) -> TopicInfo | None:
        """A topic as a (shared) request finds it that begins after this call; None = there is none.

        Raises:
            KafkaUnavailableError: No answer in time.
            UnauthorizedError: Kafka refuses the topic.
        """

    async def offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, int]:
        """Offsets at places; a partition that does not answer is left out, unless none does.

        A timestamp beyond the last record gives the log end. Errors: as `look`.
        """

    async def find_offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, FoundOffset]:
        """As `offsets`, with the record's time; beyond the last record there is nothing."""

    async def close(self) -> None:
        """Ends the client."""


class CommittedOffset(NamedTuple):
    """Offset that a consumer group has committed for a partition."""

    offset: int
    metadata: str


class OffsetsExport(Protocol):
    """Offsets of consumer groups in Kafka, for tools that know no share groups (design 9).

    Partitions are (topic, partition).

    Errors of both methods:
        GroupNotEmptyError: The consumer group has members.
        InvalidConfigError: The name belongs to a group of another type.
        UnauthorizedError: Kafka does not allow it.
        KafkaUnavailableError: No answer in time; after `write` nobody knows what was written.
    """

    async def read(
        self, group_id: str, *, even_with_members: bool = False
    ) -> dict[tuple[str, int], CommittedOffset]:
        """All that a consumer group has committed, maybe nothing; metadata may be longer."""

    async def write(
        self, group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> set[tuple[str, int]]:
        """Commits for a consumer group, in one request; makes the group when it is new.

        Returns:
            The partitions that were written; the cluster does not have, or refuses, the others.
        """

    async def close(self) -> None:
        """Ends the client."""


class DeadLetterSink(Protocol):
    """Sink of dead letters: their topics. `send` does not wait."""

    @property
    def unsent_bytes(self) -> int:
        """Memory of messages in this process beside the outboxes' own."""

    def send(
        self, topic: str, message: OutgoingMessage, done: Callable[[SharecoordError | None], None]
    ) -> None:
        """Hands a message over: acks=all, no time limit, the order of one key kept.

        Args:
            topic: The topic that gets the message.
            message: The record to send.
            done: Called in a later turn of the loop: with None once all replicas have the message,
                with LimitExceededError when the topic takes no message of that size, or with
                another error.
        """

    async def open(self, outbox: str, topic: str) -> LetterTransactions:
        """Takes an outbox from its former user, who can send nothing more; ends its transaction.

        Args:
            outbox: The transactional id.
            topic: The topic that gets the letters.

        Raises:
            UnauthorizedError: Kafka does not let us.
            KafkaUnavailableError: No answer in time.
        """

    async def ensure(self, topic: str, *, create: bool) -> None:
        """Makes sure that a topic exists; with `create` makes it, with the broker's defaults.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist, and must not be made.
            UnauthorizedError: Kafka does not let us make it.
            KafkaUnavailableError: No answer in time.
        """

    async def close(self) -> None:
        """Ends the client; what is under way may or may not arrive."""


class LetterTransactions(Protocol):
    """An outbox that was opened, until something fails or it is opened again."""

    @property
    def mark(self) -> OutboxMark | None:
        """The mark of the last transaction that was committed; None = there is none."""

    @property
    def is_open(self) -> bool:
        """False after an error: only the one who opens it anew learns what the last one became."""

    async def send(self, topic: str, messages: Sequence[OutgoingMessage], mark: OutboxMark) -> None:
        """Sends messages and the mark, all or nothing; after an error it is not open any more.

        Raises:
            NotOwnerError: Somebody else has opened the outbox since.
            LimitExceededError: The topic does not take one of them, for its size; nothing was sent.
            SharecoordError: It may have been sent or not.
        """


class OutgoingMessage(NamedTuple):
    """A record that is to be sent."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class OwnerWay(Protocol):
    """Way to an owner of share-partitions; calls do not wait."""

    def say(self, item: GatewayItem) -> None:
        """Sends an item, after those before; lost when the link breaks."""


class GatewayWay(Protocol):
    """Way back to the gateway of members; calls do not wait."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of payloads that wait on the link."""

    def say(self, item: OwnerItem) -> None:
        """Sends an item, after those before; lost when the link breaks."""

    def frame(self, delivery: Delivery, now_ms: int) -> object:
        """A delivery in the form that the member's stream takes as it is."""

    def batches(self, delivery: Delivery) -> object:
        """The same for a member that takes Kafka's record batches."""


class PeerListener(Protocol):
    """Listener to links to owners."""

    def linked(self, owner_id: str, way: OwnerWay) -> Callable[[OwnerItem], None]:
        """An owner can be reached now; returns the listener to its items, which come in order."""

    def unlinked(self, owner_id: str) -> None:
        """The link is gone, with all items under way on it. Another one may follow."""


class PeerNetwork(Protocol):
    """Links from this gateway to the other coordinators."""

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Keeps links to exactly these addresses, given by coordinator id."""

    async def close(self) -> None:
        """Ends every link."""


class ProducerFigures(NamedTuple):
    """The process that produces dead letters and exports offsets."""

    is_running: bool
    """Whether there is one; it is started by the first call, and ends without calls."""
    is_down: bool
    """Whether it ended under calls, or could not be started, and none has proven itself since."""
    restarts: int
    """How often it ended by itself or could not be started."""
    waiting_bytes: int
    """Bytes that it has not taken yet."""


class EventFigures(NamedTuple):
    """Numbers of events since the process started."""

    written: int
    """Rows that the writer has taken."""
    lost: int
    """Rows that were dropped: the writer was too slow, gone, or could not write."""
    waiting_bytes: int
    """Bytes of rows that wait for the writer."""


class EventSink(Protocol):
    """Sink of events (design 11).

    Calls do not wait, and never fail: rows that cannot be written are counted, and a row of kind
    `lost` says so as soon as there is room again.
    """

    def put(self, block: EventBlock) -> None:
        """Takes rows; the caller does not touch them any more."""

    @property
    def figures(self) -> EventFigures:
        """For metrics."""

    async def close(self) -> None:
        """Writes the rows that wait, then ends; gives up after some seconds."""


class BrokerAddress(NamedTuple):
    """Where a broker of Kafka listens for clients."""

    host: str
    port: int
    rack: str | None = None


class Passage(Protocol):
    """A connection to one broker, for the requests of one client: both as they come.

    Answers come in the order of the requests. Errors of every method: KafkaUnavailableError, the
    broker has ended the connection.
    """

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent: the broker has not ended it, and its log-in holds."""

    async def send(self, frame: memoryview, *, has_answer: bool = True) -> None:
        """Sends a request without its length; waits while the broker reads slowly."""

    async def answer(self) -> bytes:
        """The next answer with its length."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The next answer with its length, in pieces; no more is read than is taken."""

    def close(self, *, flushes: bool = False) -> None:
        """Ends it, when it `flushes` once the broker has taken what was sent."""


class Brokers(Protocol):
    """The brokers of the cluster, for requests that are passed on to them.

    Errors of every method: KafkaUnavailableError, the broker is not reached; UnauthenticatedError,
    it does not let us in.
    """

    @property
    def nodes(self) -> Mapping[int, BrokerAddress]:
        """The brokers that are known, by their ids."""

    def learn(self, nodes: Mapping[int, BrokerAddress]) -> None:
        """Takes in which brokers there are, as an answer said that was passed on."""

    async def refresh(self) -> None:
        """Asks which brokers there are."""

    async def versions(self, node: int | None) -> Mapping[int, tuple[int, int]]:
        """The APIs of a broker, with first and last version; None = of any broker."""

    async def ask(self, node: int | None, frame: memoryview) -> memoryview:
        """The answer to a request without its length, behind its correlation id.

        All who ask use the same connection.
        """

    async def open(self, node: int | None, lost: Callable[[], None]) -> Passage:
        """A connection of its own; `lost` hears when the broker has ended it."""
