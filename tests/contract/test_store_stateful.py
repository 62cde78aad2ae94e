"""Random operations of two coordinators: SQL and the reference must answer alike, step by step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sharecoord.core.changes import (
    Checkpoint,
    CommitBatch,
    DeadLetter,
    DelayedPlace,
    InFlightRow,
    KeptPayload,
    LoadedPartition,
    MemberRow,
    PartitionCommit,
    PartitionHead,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
)
from sharecoord.core.dispatch.pauses import Pause, PauseScope
from sharecoord.errors import SharecoordError
from tests.contract.conftest import SERVERS
from tests.contract.store_worlds import (
    AnyStore,
    MemoryWorld,
    ServerWorld,
    SqliteWorld,
    World,
    claim_partition,
    initialize_partition,
    key_of,
    open_partition,
)

T = TypeVar("T")

COORDINATORS = ("one", "two")
KEYS = [key_of(0), key_of(1), key_of(0, topic="pay"), key_of(0, group="other")]
GROUPS = ["group", "other"]
LAST_OFFSET = 12

coordinators = st.sampled_from(COORDINATORS)
keys = st.sampled_from(KEYS)
groups = st.sampled_from(GROUPS)
int64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
small = st.integers(min_value=0, max_value=5)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
keys_of_records = st.sampled_from([b"", b"k", b"\x00\xff"])
texts = st.text(st.characters(codec="utf-8"), max_size=4)


@st.composite
def layouts(draw: st.DrawFn) -> list[InFlightRow]:
    """Ranges without overlap, some of the space left free."""
    cuts = sorted(draw(st.sets(st.integers(0, LAST_OFFSET), max_size=8)))
    rows = []
    for first, last in zip(cuts[::2], cuts[1::2], strict=False):
        rows.append(
            InFlightRow(
                first_offset=first,
                last_offset=last,
                state=draw(st.sampled_from([0, 1, 3, 4])),
                delivery_count=draw(small),
                hand_outs=draw(small),
                member_id=draw(st.none() | texts),
                lock_token=draw(int64),
                deadline_ms=draw(int64),
                granted_ms=draw(int64),
                available_at_ms=draw(st.just(0) | int64),
                batch_base=draw(int64),
                batch_size=draw(small),
                reason=draw(st.none() | texts),
                key_hashes=draw(st.none() | st.binary(max_size=16)),
                history=draw(st.none() | texts),
            )
        )
    return rows


heads = st.builds(
    PartitionHead,
    start_offset=int64,
    end_offset=int64,
    end_leader_epoch=small,
    finished_count=int64,
    change_sequence=small,
)
letters = st.builds(
    DeadLetter,
    offset=small,
    reason=texts,
    delivery_count=small,
    message=st.none() | texts,
    key=st.none() | st.binary(max_size=3),
    value=st.none() | st.binary(max_size=3),
    headers=headers.map(tuple),
    timestamp_ms=int64,
    payload_known=st.booleans(),
    member_id=st.none() | texts,
    failed_at_ms=int64,
    state_epoch=int64,
    kept=st.booleans(),
    checkpoint=st.none() | st.binary(max_size=3),
    members=st.lists(texts, max_size=2).map(tuple),
    first_failed_at_ms=int64,
    sequence=st.integers(0, 1),
    topic=texts,
    exactly_once=st.booleans(),
)
checkpoints = st.lists(
    st.builds(Checkpoint, offset=small, data=st.binary(max_size=3), at_ms=int64),
    max_size=2,
    unique_by=lambda each: each.offset,
)
kept_payloads = st.lists(
    st.builds(
        KeptPayload,
        offset=small,
        size_bytes=st.integers(0, 2**63 - 1),
        key=st.none() | st.binary(max_size=3),
        value=st.none() | st.binary(max_size=3),
        headers=headers.map(tuple),
        timestamp_ms=int64,
        timestamp_type=st.integers(0, 2),
    ),
    max_size=2,
    unique_by=lambda each: each.offset,
)
scopes = st.builds(PauseScope, st.sampled_from(["", "t"]), st.none() | small) | st.builds(
    PauseScope, member_id=texts
)
pauses = st.lists(st.builds(Pause, scopes, small, texts, texts), max_size=3)
members = st.builds(
    MemberRow,
    group_id=groups,
    member_id=st.sampled_from(["m1", "m2"]),
    member_epoch=small,
    client_id=texts,
    host=texts,
    gateway=st.sampled_from([*COORDINATORS, "dead"]),
    topics=st.lists(texts, max_size=2).map(tuple),
    join_number=small,
    principal=texts,
)


class StoresAgree(RuleBasedStateMachine):
    """Runs every step on both and compares answers, errors and everything that can be read."""

    @initialize()
    def start(self) -> None:
        self.memory = MemoryWorld()
        self.sql = self.make_world()
        self.pairs: dict[str, tuple[AnyStore, AnyStore]] = {
            name: (self.memory.open(name), self.sql.open(name)) for name in COORDINATORS
        }
        self.claims: dict[tuple[str, PartitionKey], LoadedPartition] = {}
        self.incarnation = 0

    def make_world(self) -> World:
        """An empty database."""
        self.folder = tempfile.TemporaryDirectory()
        return SqliteWorld(Path(self.folder.name) / "s.db")

    def teardown(self) -> None:
        if hasattr(self, "sql"):
            self.memory.close()
            self.sql.close()
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def both(self, name: str, call: Callable[[AnyStore], T]) -> T | None:
        """The answer of both stores, None when both raised the same kind of error."""
        answers: list[T] = []
        errors: list[type[SharecoordError]] = []
        for store in self.pairs[name]:
            try:
                answers.append(call(store))
            except SharecoordError as error:
                errors.append(type(error))
        if errors:
            assert len(errors) == 2, (errors, answers)
            assert errors[0] is errors[1]
            return None
        assert answers[0] == answers[1]
        return answers[0]

    # -- steps ----------------------------------------------------------------------------------

    @rule(elapsed_ms=st.sampled_from([1, 3999, 4000, 4001]))
    def time_passes(self, elapsed_ms: int) -> None:
        self.memory.time_ms += elapsed_ms
        self.sql.time_ms += elapsed_ms

    @rule(name=coordinators)
    def renew(self, name: str) -> None:
        self.both(name, lambda store: store.renew_lease(duration_ms=4000))

    @rule(name=coordinators, after=st.booleans())
    def break_next_commit(self, name: str, after: bool) -> None:
        memory, sql = self.pairs[name]
        # A step that fails before COMMIT would leave the fault to SQL only: use it up at once.
        self.memory.break_next_commit(memory, after=after)
        self.sql.break_next_commit(sql, after=after)
        self.both(name, lambda store: store.join_members([MemberRow("g", "m", 0, "", "", "", ())]))

    @rule(
        name=coordinators,
        key=keys,
        reload=st.booleans(),
        delayed_max=st.sampled_from([None, 1, 2, 10]),
    )
    def claim(self, name: str, key: PartitionKey, reload: bool, delayed_max: int | None) -> None:
        row = self.both(name, lambda store: open_partition(store, key))
        assert row is not None
        old = self.claims.get((name, key))
        previous = old.row.incarnation if reload and old is not None else None
        self.incarnation += 1
        number = self.incarnation
        loaded = self.both(
            name,
            lambda store: claim_partition(
                store,
                row.partition_id,
                incarnation=number,
                previous_incarnation=previous,
                delayed_max=delayed_max,
            ),
        )
        if loaded is not None:
            self.claims[name, key] = loaded

    @rule(name=coordinators, key=keys, at_ms=int64, first=small, most=st.integers(1, 3))
    def page(self, name: str, key: PartitionKey, at_ms: int, first: int, most: int) -> None:
        """Delayed ranges behind some place, or behind that of one of them."""
        claim = self.claims.get((name, key))
        if claim is None:
            return
        part, places = claim.row.partition_id, [DelayedPlace(0, -1), DelayedPlace(at_ms, first)]
        memory = self.pairs[name][0]
        rows = memory.read_in_flight(part, from_offset=0, max_rows=100)
        places += [DelayedPlace(row.available_at_ms, row.first_offset) for row in rows[:2]]
        for place in places:
            self.both(name, lambda s: s.read_delayed(part, after=place, max_rows=most))  # noqa: B023

    @rule(name=coordinators, key=keys, head=heads)
    def initialise(self, name: str, key: PartitionKey, head: PartitionHead) -> None:
        claim = self.claims.get((name, key))
        if claim is not None:
            row = claim.row
            self.both(
                name,
                lambda store: initialize_partition(
                    store, row.partition_id, owner_epoch=row.owner_epoch, head=head
                ),
            )

    @rule(name=coordinators, key=keys, what=st.sampled_from(["release", "close", "stop"]))
    def give_up(self, name: str, key: PartitionKey, what: str) -> None:
        claim = self.claims.get((name, key))
        if claim is None:
            return
        part, epoch = claim.row.partition_id, claim.row.owner_epoch
        if what == "release":
            self.both(name, lambda store: store.release_partitions([PartitionRelease(part, epoch)]))
        elif what == "close":
            self.both(name, lambda store: store.close_partition(part, owner_epoch=epoch))
        else:
            self.both(name, lambda s: s.stop_partition(part, owner_epoch=epoch, reason="why"))

    @rule(
        name=coordinators,
        data=st.data(),
        removed=st.lists(
            st.tuples(groups, st.sampled_from(["m1", "m2"]), st.integers(0, 4)), max_size=2
        ),
    )
    def commit(
        self,
        name: str,
        data: st.DataObject,
        removed: list[tuple[str, str, int]],
    ) -> None:
        mine = [key for owner, key in self.claims if owner == name]
        chosen = data.draw(st.lists(st.sampled_from(mine), unique=True)) if mine else []
        batch = CommitBatch(
            partitions=[self.change(data, name, key) for key in chosen],
            members_removed=removed,
        )
        self.both(name, lambda store: store.commit(batch))

    def change(self, data: st.DataObject, name: str, key: PartitionKey) -> PartitionCommit:
        """From the stored ranges to random other ones, under the epochs of the last claim."""
        row = self.claims[name, key].row
        memory = self.pairs[name][0]
        stored = {
            one.first_offset: one
            for one in memory.read_in_flight(row.partition_id, from_offset=0, max_rows=100)
        }
        wanted = {one.first_offset: one for one in data.draw(layouts())}
        return PartitionCommit(
            partition_id=row.partition_id,
            owner_epoch=row.owner_epoch,
            state_epoch=row.state_epoch,
            head=data.draw(heads),
            deleted=[first for first in stored if first not in wanted],
            upserted=[one for first, one in wanted.items() if stored.get(first) != one],
            dead_letters=data.draw(st.lists(letters, max_size=2)),
            dead_letters_done=data.draw(st.lists(small, max_size=2)),
            checkpoints=data.draw(checkpoints),
            checkpoints_done=data.draw(st.lists(small, max_size=2)),
            kept=data.draw(kept_payloads),
            kept_done=data.draw(st.lists(small, max_size=2)),
            truncated_at=data.draw(st.none() | small),
        )

    @rule(
        name=coordinators,
        joining=st.lists(members, max_size=4, unique_by=lambda m: (m.group_id, m.member_id)),
    )
    def join(self, name: str, joining: list[MemberRow]) -> None:
        self.both(name, lambda store: store.join_members(joining))

    @rule(name=coordinators, group=groups, made_by=st.sampled_from(["", "User:a", "User:b"]))
    def ensure(self, name: str, group: str, made_by: str) -> None:
        self.both(name, lambda store: store.ensure_group(group, made_by=made_by))

    @rule(name=coordinators, group=groups, value=texts, deleted=st.lists(st.sampled_from("ab")))
    def configure(self, name: str, group: str, value: str, deleted: list[str]) -> None:
        self.both(
            name,
            lambda store: store.save_group_config(group, set_values={"a": value}, deleted=deleted),
        )

    @rule(
        name=coordinators,
        group=groups,
        blocked=st.dictionaries(keys_of_records, texts, max_size=2),
        unblocked=st.lists(keys_of_records, max_size=2),
    )
    def block(
        self, name: str, group: str, blocked: dict[bytes, str], unblocked: list[bytes]
    ) -> None:
        self.both(
            name,
            lambda store: store.save_blocked_keys(group, blocked=blocked, unblocked=unblocked),
        )

    @rule(name=coordinators, group=groups, pause=pauses, resume=pauses)
    def pause(self, name: str, group: str, pause: list[Pause], resume: list[Pause]) -> None:
        scopes = [each.scope for each in resume]
        self.both(name, lambda store: store.change_pauses(group, pause=pause, resume=scopes))

    @rule(name=coordinators, starts=st.dictionaries(keys, int64, max_size=2))
    def reset(self, name: str, starts: dict[PartitionKey, int]) -> None:
        self.both(name, lambda store: store.reset_partitions(starts))

    @rule(name=coordinators, group=groups, topics=st.lists(st.sampled_from(["orders", "pay"])))
    def delete_topics(self, name: str, group: str, topics: list[str]) -> None:
        self.both(name, lambda store: store.delete_topics(group, topics))

    @rule(name=coordinators, group=groups)
    def delete_group(self, name: str, group: str) -> None:
        self.both(name, lambda store: store.delete_group(group))

    # -- what must always hold ------------------------------------------------------------------

    @invariant()
    def everything_that_can_be_read_is_equal(self) -> None:
        if not hasattr(self, "pairs"):
            return
        self.both("one", lambda store: store.load_groups())
        self.both("one", lambda store: store.load_members())
        for group in GROUPS:
            for row in self.both("one", self.partitions_of(group)) or []:
                self.both("one", self.ranges_of(row.partition_id))
                self.both("one", self.counts_of(row.partition_id))

    @staticmethod
    def partitions_of(group: str) -> Callable[[AnyStore], list[PartitionRow]]:
        return lambda store: store.list_partitions(group)

    @staticmethod
    def ranges_of(partition_id: int) -> Callable[[AnyStore], list[InFlightRow]]:
        return lambda store: store.read_in_flight(partition_id, from_offset=3, max_rows=4)

    @staticmethod
    def counts_of(partition_id: int) -> Callable[[AnyStore], dict[int, int]]:
        return lambda store: store.count_in_flight(partition_id)


@pytest.mark.parametrize("server", SERVERS)
def test_servers_agree(server: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(server).url

    class ServerAgrees(StoresAgree):
        def make_world(self) -> World:
            return ServerWorld(url)

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        ServerAgrees,
        settings=settings(
            max_examples=max(10, settings().max_examples // 5),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


# A disagreement is made small before it is shown, which takes minutes.
TestStoresAgree = pytest.mark.timeout(600)(StoresAgree.TestCase)
TestStoresAgree.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
