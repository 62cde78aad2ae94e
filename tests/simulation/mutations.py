"""Mistakes that somebody could make in the product, each as a patch at run time.

The simulator must find each of them; docs/simulation.md lists what finds it. A mistake that is not
found shows that the simulator, or its judge, is too weak.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from sharecoord.config.group import GroupConfig
from sharecoord.core.changes import (
    CommitBatch,
    CommitResult,
    InFlight,
    LoadedPartition,
    PartitionClaim,
    PartitionCommit,
    PartitionRow,
)
from sharecoord.core.dispatch.pauses import Pauses
from sharecoord.core.letters import lanes
from sharecoord.core.letters.lanes import LaneChange, Replayed
from sharecoord.core.order.admission import Admission
from sharecoord.core.order.shared_keys import SharedKeys
from sharecoord.core.partition import log_start, outcomes, passed_over, share_partition
from sharecoord.core.partition.decisions import AcknowledgedRange, Decision
from sharecoord.core.partition.leader_epochs import UNKNOWN, LeaderEpochs
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.window.window import RangeState, Window
from sharecoord.errors import SharecoordError
from sharecoord.ports import LATEST, OffsetQuery
from sharecoord.runtime.admin import replay
from sharecoord.runtime.admin.force import ForcedChange
from sharecoord.runtime.group import actor as group_actor
from sharecoord.runtime.group import loading, log_changes
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.dispatch import Dispatcher
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.letters.orphans import OrphanWatch
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition import candidates, claimed, recovery
from sharecoord.runtime.partition import log as partition_log
from sharecoord.runtime.partition.actor import AcknowledgeEffect, DeliveryEffect, PartitionActor
from sharecoord.runtime.partition.bounds import BoundedSink
from sharecoord.runtime.partition.checkpoints import Checkpoints
from sharecoord.runtime.partition.dead_letters import DeadLetters
from sharecoord.runtime.partition.kept_payloads import KeptPayloads
from sharecoord.runtime.partition.letter_sender import LetterSender
from sharecoord.runtime.partition.topic_life import TopicLife
from sharecoord.store.memory import lanes as memory_lanes
from sharecoord.store.memory.database import MemoryDatabase, MemoryPartition
from sharecoord.store.memory.store import MemoryStore
from tests.simulation.fleet_mutations import FLEET_MUTATIONS, Patch, on
from tests.simulation.program_mutations import PROGRAM_MUTATIONS
from tests.simulation.script import play
from tests.simulation.world import FailedLifeError, run_life


def _no_fence(store: MemoryStore, batch: CommitBatch) -> CommitResult:
    """Commits whatever the epochs are."""
    database = store.database
    for part in batch.partitions:
        found = database.partitions.get(part.partition_id)
        if found is not None:
            part.owner_epoch, part.state_epoch = found.row.owner_epoch, found.row.state_epoch
    return _commit(store, batch)


_commit = MemoryStore.commit
_claim = MemoryStore._claim


def _no_owner_epoch(
    store: MemoryStore, database: MemoryDatabase, claim: PartitionClaim
) -> LoadedPartition | None:
    """Claims without raising the owner epoch."""
    loaded = _claim(store, database, claim)
    found = database.partitions.get(claim.partition_id)
    if loaded is None or found is None:
        return loaded
    found.row = replace(found.row, owner_epoch=max(1, found.row.owner_epoch - 1))
    return replace(loaded, row=found.row)


def _reply_before_commit(effect: AcknowledgeEffect, *args: Any, **kwargs: Any) -> None:
    """Answers when an acknowledgement was decided, not when it is stored."""
    _acknowledge_effect(effect, *args, **kwargs)
    collector, answered = effect.collector, AcknowledgeEffect.release
    answered(effect)
    effect.collector = mock.Mock(wraps=collector, add=lambda _: None)


_acknowledge_effect = AcknowledgeEffect.__init__


def _reply_ok_after_failure(effect: AcknowledgeEffect, error: SharecoordError) -> None:
    """Answers OK although the commit failed."""
    effect.release()


def _send_after_failure(effect: DeliveryEffect, error: SharecoordError) -> None:
    """Sends a delivery whose commit failed."""
    effect.actor.sending.pop(effect, None)
    if effect.channel is not None:
        effect.channel.deliver(effect.delivery, effect.actor.clock.now_ms())


def _send_before_commit(effect: DeliveryEffect, *args: Any) -> None:
    """Sends a delivery when it was decided."""
    _delivery_effect(effect, *args)
    if effect.channel is not None:
        effect.channel.deliver(effect.delivery, effect.actor.clock.now_ms())
    effect.channel = None


_delivery_effect = DeliveryEffect.__init__


def _heard_ok(letters: LetterSender, entry: Any, error: SharecoordError | None) -> None:
    """Takes a dead letter that Kafka refused for one that arrived."""
    _heard(letters, entry, None)


def _no_bar(shared: SharedKeys, key: int, order: object) -> bool:
    """Keeps order in each share-partition by itself."""
    return False


_keep = Checkpoints.keep


def _forgets_checkpoints(checkpoints: Checkpoints, _: PartitionCommit) -> None:
    """Has them in memory alone."""
    checkpoints._new.clear()


def _keeps_refused(
    checkpoints: Checkpoints, ranges: Sequence[AcknowledgedRange], _: object, at_ms: int
) -> None:
    """Stores what a member says, whatever the answer is."""
    _keep(checkpoints, ranges, (), at_ms)


def _no_outbox(letters: DeadLetters, commit: PartitionCommit) -> None:
    """Stores no dead letter."""
    _into(letters, commit)
    commit.dead_letters = []


def _arrived_nothing(letters: LetterSender, mark: object) -> None:
    """Does not ask what a former owner's transactions have sent."""


async def _left_alone(watch: OrphanWatch, row: object) -> None:
    """Sends no letters of topics that are gone."""


_heard, _into = LetterSender._heard, DeadLetters.into


def _any_token(
    partition: SharePartition, value: RangeState, member_id: str, token: int, kind: Any
) -> bool:
    """Takes an acknowledgement under any token of its holder."""
    return _settles(partition, value, member_id, value.lock_token, kind)


def _any_member(
    partition: SharePartition, value: RangeState, member_id: str, token: int, kind: Any
) -> bool:
    """Takes an acknowledgement from anybody who knows the token."""
    return _settles(partition, value, str(value.member_id), token, kind)


_settles = SharePartition._settles


def _count_taken_back(
    old: RangeState, settings: Any, now_ms: int, delay_ms: int = 0, reason: str | None = None
) -> RangeState:
    """A lock that ends by itself does not count."""
    return outcomes.returned(old, settings, now_ms)


def _no_lock_book(actor: PartitionActor, member_id: str, *args: Any, **kwargs: Any) -> Any:
    """Hands back all that a member holds, whatever its book says."""
    return _compare(actor, member_id, [], **kwargs)


_compare = PartitionActor.compare_lock_book


def _one_more(config: GroupConfig, *args: Any) -> PartitionSettings:
    """The delivery limit is one higher than what is set."""
    settings = _settings_of(config, *args)
    return settings._replace(delivery_limit=settings.delivery_limit + 1)


_settings_of = group_actor.settings_of


def _one_too_long(window: Window, edits: Sequence[Any], end_offset: int | None = None) -> None:
    """Off by one: an edit that splits a range takes one record more than asked."""
    longer = []
    for at, edit in enumerate(edits):
        found = window.ranges.get(edit.first)
        following = edits[at + 1].first if at + 1 < len(edits) else 1 << 62
        room = found is not None and edit.last < found[1] and edit.last + 1 < following
        longer.append(edit._replace(last=edit.last + 1) if room else edit)
    _apply(window, longer, end_offset)


_apply = Window.apply


def _start_passes_due(window: Window) -> None:
    """The start offset goes over a record that is due."""
    _advance(window)
    front = window.ranges.front()
    if front is not None and front[2].state == 0 and front[2].delivery_count:
        window.start_offset = min(front[1] + 1, window.end_offset)


_advance = Window._advance_start


def _forgotten_range(*args: Any, **kwargs: Any) -> Any:
    """A commit leaves out one changed row now and then."""
    commit = _commit_of(*args, **kwargs)
    if len(commit.upserted) > 2:
        commit.upserted.pop()
    return commit


_commit_of = recovery.commit_of


def _range_forgotten_at_load(rows: InFlight, *args: Any, **kwargs: Any) -> Any:
    """A claim loads all ranges but the last: its records pass for finished."""
    kept = max(1, len(rows) - 1)
    return _ranges_of(InFlight.of(rows[:kept]), *args, **kwargs)


_ranges_of = recovery.ranges_of


def _locks_forgotten_at_load(*args: Any, **kwargs: Any) -> Any:
    """A claim loads locks without their deadlines: they end at once."""
    firsts, lasts, values = _ranges_of(*args, **kwargs)
    return firsts, lasts, [v._replace(deadline_ms=1) if v.deadline_ms else v for v in values]


def _no_hand_back(actor: PartitionActor, member_id: str, ranges: Sequence[Any]) -> None:
    """What could not be sent is forgotten: it counts as delivered once its lock has ended."""


def _same_tokens(partition: SharePartition, *args: Any, **kwargs: Any) -> None:
    """Every lock of an incarnation has the same token."""
    _grant(partition, *args, **kwargs)
    decision: Decision = args[0]
    decision.tokens_used = 0


_grant = SharePartition._grant


def _early_end(window: Window, now_ms: int) -> list[Any]:
    """Locks end a second early."""
    return _expired(window, now_ms + 1000)


_expired = Window.expired


def _early_due(window: Window, now_ms: int) -> int:
    """Delayed records are due four seconds early."""
    return _make_due(window, now_ms + 4000)


_make_due = Window.advance


def _no_delay(
    old: RangeState,
    settings: PartitionSettings,
    now_ms: int,
    delay_ms: int = 0,
    reason: str | None = None,
) -> RangeState:
    """What the worker asks for does not count, the group's back-off does."""
    return _released(old, settings, now_ms, 0, reason)


_released = outcomes.released


def _first_backoff(settings: PartitionSettings, failures: int, *, spread: int = 0) -> int:
    """Each failure waits as long as the first one."""
    return _backoff_ms(settings, 1, spread=spread)


_backoff_ms = PartitionSettings.backoff_ms


def _wait_forgotten_at_load(*args: Any, **kwargs: Any) -> Any:
    """A claim makes all due that waits for its time."""
    firsts, lasts, values = _ranges_of(*args, **kwargs)
    return firsts, lasts, [value._replace(available_at_ms=0) for value in values]


def _gap_assumed(partition: SharePartition, end_offset: int) -> Decision:
    """A gap is concluded one offset too far."""
    return _gap_ahead(partition, end_offset + 1)


_gap_ahead = SharePartition.decide_gap_ahead


def _no_credit(session: Session, held: int) -> int:
    """Members get what they can hold, whatever they have credit for."""
    wanted = _takes(session, held)
    return wanted if session.channel is None else max(wanted, min(10, 10 - held))


_takes = Session.takes


def _no_life(life: TopicLife, fetched_after_s: float, size_bytes: int, use: Any) -> None:
    """Records pass without a look at their topic."""
    use()


def _no_window(config: GroupConfig, *args: Any) -> PartitionSettings:
    """Far more may be under locks than is set."""
    return _settings_of(config, *args)._replace(record_locks_max=10_000)


def _sessions_end_at_once(group: GroupActor, session: Session) -> None:
    """A broken stream counts as a departure."""
    group.leave(session)


def _no_timer(actor: PartitionActor) -> None:
    """Nothing ends by itself."""


def _not_woken(dispatcher: Dispatcher, actor: PartitionActor, refunded: str | None = None) -> None:
    """A partition that has something again is not looked at."""
    if refunded is not None or actor.partition is None or not actor.partition.window.due:
        _wake(dispatcher, actor, refunded)


_wake = Dispatcher.wake


def _any_holder(admission: Admission, key: int) -> bool:
    """A key goes on at another member."""
    return key not in admission._stopped and key not in admission.order.blocked_keys


def _chain_goes_on(*args: Any) -> None:
    """A chain stays with its member although its first record came back."""


def _nothing_blocked(config: GroupConfig, *args: Any) -> PartitionSettings:
    """Blocked keys are handed out."""
    return _settings_of(config)


def _reset_keeps_epoch(partition: Any, head: Any) -> None:
    """A reset does not raise the state epoch: owners do not notice."""
    partition.in_flight.clear()
    partition.set_head(head)


def _forgets_marks(part: MemoryPartition) -> Any:
    """Takes a letter in although it was redriven before."""
    return replace(_lane_state(part), marks=())


def _forgets_locks(part: MemoryPartition) -> Any:
    """Makes letters due again that a member holds."""
    return replace(_lane_state(part), rows=())


_lane_state = memory_lanes._state


def _replays_less(part: Replayed, change_sequence: int) -> LaneChange:
    """Leaves out the first record."""
    if part.spans and len(part.spans) > 1:
        part = replace(part, spans=part.spans[1:])
    elif not part.spans and part.start_offset < part.stops_at:
        part = replace(part, start_offset=part.start_offset + 1)
    return _replay(part, change_sequence)


def _replays_all_between(part: Replayed, change_sequence: int) -> LaneChange:
    """Single offsets, and what lies between them."""
    return _replay(replace(part, spans=()), change_sequence)


_replay = lanes.replay


def _nothing_hinders() -> contextlib.AbstractContextManager[Any]:
    """A replay takes the place of another one, at the coordinator and in the store."""
    stack = contextlib.ExitStack()
    for where in (replay, lanes):
        stack.enter_context(mock.patch.object(where, "hinders_replay", return_value=False))
    return stack


def _begins_source_anew(database: MemoryDatabase, *args: Any) -> bool:
    """Raises the epochs of whatever comes first, too."""
    next(iter(database.partitions.values())).raise_epochs()
    return _make_replay(database, *args)


_make_replay = memory_lanes.make_replay


def _forces_more(forcing: ForcedChange, *args: Any) -> PartitionCommit | None:
    """Forces the record before the asked ones, too."""
    forcing.first -= forcing.first > 0
    return _decide(forcing, *args)


_decide = ForcedChange.decide


async def _last_end_counts(
    context: Context, actor: PartitionActor, row: PartitionRow, *args: Any, **kwargs: Any
) -> int | None:
    """Takes a log for cut where it ends when that is certain."""
    if await _lowest_end(context, actor, row, *args, **kwargs) is None:
        return None
    return await context.calls.offset(OffsetQuery(row.key.topic, row.key.partition, LATEST))


_lowest_end = log_changes._lowest_end


def _no_epoch_stored(*args: Any, **kwargs: Any) -> PartitionCommit:
    """Commits an end without the leader epoch before it."""
    commit = _commit_of(*args, **kwargs)
    assert commit.head is not None, "of a share-partition"
    commit.head = replace(commit.head, end_leader_epoch=UNKNOWN)
    return commit


def _truncated_below_the_end(window: Window, offset: int) -> None:
    """A log that was cut voids what is under way there; what was finished stays so."""
    end = window.end_offset
    _truncate(window, offset)
    window.end_offset = end
    _advance(window)


_truncate = Window.truncate


MUTATIONS = FLEET_MUTATIONS | {
    **PROGRAM_MUTATIONS,
    "a letter is redriven a second time": on(memory_lanes, "_state", _forgets_marks),
    "a redrive ends locks of an earlier one": on(memory_lanes, "_state", _forgets_locks),
    "a replay leaves out its first record": on(lanes, "replay", _replays_less),
    "a replay of single offsets has those between": on(lanes, "replay", _replays_all_between),
    "a replay reads beyond its end": on(
        partition_log, "BoundedSink", lambda sink, stops_at: BoundedSink(sink, 1 << 60)
    ),
    "a replay ends one that is not finished": _nothing_hinders,
    "a replay begins its source anew": on(memory_lanes, "make_replay", _begins_source_anew),
    "a commit of a former owner takes effect": on(MemoryStore, "commit", _no_fence),
    "a log is taken for cut where it ends later": on(log_changes, "_lowest_end", _last_end_counts),
    "a leader epoch is not stored": on(claimed, "commit_of", _no_epoch_stored),
    "a leader epoch is not shown after a load": on(
        share_partition, "LeaderEpochs", lambda end_offset, epoch: LeaderEpochs(end_offset, UNKNOWN)
    ),
    "a log that was cut keeps what was finished": on(Window, "truncate", _truncated_below_the_end),
    "a claim does not raise the owner epoch": on(MemoryStore, "_claim", _no_owner_epoch),
    "a reset does not raise the state epoch": on(MemoryPartition, "clear", _reset_keeps_epoch),
    "an acknowledgement is confirmed before it is stored": on(
        AcknowledgeEffect, "__init__", _reply_before_commit
    ),
    "an acknowledgement is confirmed though its commit failed": on(
        AcknowledgeEffect, "abort", _reply_ok_after_failure
    ),
    "a delivery is sent before it is stored": on(DeliveryEffect, "__init__", _send_before_commit),
    "a delivery is sent though its commit failed": on(DeliveryEffect, "abort", _send_after_failure),
    "an acknowledgement under an old token settles": on(SharePartition, "_settles", _any_token),
    "an acknowledgement by another member settles": on(SharePartition, "_settles", _any_member),
    "all locks of an incarnation have one token": on(SharePartition, "_grant", _same_tokens),
    "a lock that ends takes its count back": on(outcomes, "released", _count_taken_back),
    "a lock ends a second early": on(Window, "expired", _early_end),
    "what is delayed is due four seconds early": on(Window, "advance", _early_due),
    "a delay is forgotten": on(outcomes, "released", _no_delay),
    "a back-off is forgotten": on(PartitionSettings, "backoff_ms", lambda *_, **__: 0),
    "a back-off does not grow": on(PartitionSettings, "backoff_ms", _first_backoff),
    "a claim forgets until when records wait": on(loading, "ranges_of", _wait_forgotten_at_load),
    "a schedule is not looked at": on(
        candidates, "_by_time", lambda chunk, runs, clock: ((*run, 0) for run in runs)
    ),
    "a join takes all locks away": on(PartitionActor, "compare_lock_book", _no_lock_book),
    "a broken stream releases all locks": on(GroupActor, "disconnected", _sessions_end_at_once),
    "a claim ends all locks": on(loading, "ranges_of", _locks_forgotten_at_load),
    "a claim forgets a range": on(loading, "ranges_of", _range_forgotten_at_load),
    "a commit leaves out a row": on(claimed, "commit_of", _forgotten_range),
    "a record is handed out beyond the limit": on(group_actor, "settings_of", _one_more),
    "a split range changes one record too many": on(Window, "apply", _one_too_long),
    "the start offset passes a due record": on(Window, "_advance_start", _start_passes_due),
    "a gap is concluded one offset too far": on(SharePartition, "decide_gap_ahead", _gap_assumed),
    "what could not be sent is not handed back": on(PartitionActor, "hand_back", _no_hand_back),
    "a dead letter that Kafka refused counts as arrived": on(LetterSender, "_heard", _heard_ok),
    "a dead letter is not stored": on(DeadLetters, "into", _no_outbox),
    "a checkpoint is not stored": on(Checkpoints, "into", _forgets_checkpoints),
    "retention takes what is kept": on(
        log_start, "_not_kept", lambda kept, first, last: [(first, last)]
    ),
    "a kept payload outlives its record": on(KeptPayloads, "_finish", lambda kept, decision: None),
    "a checkpoint under an old token is stored": on(Checkpoints, "keep", _keeps_refused),
    "what a former owner has sent is sent again": on(
        LetterSender, "_take_arrived", _arrived_nothing
    ),
    "dead letters of a topic that was made again are left": on(OrphanWatch, "_serve", _left_alone),
    "a pause of a topic, partition or member is not followed": on(
        GroupActor, "_follow_pauses", lambda group: None
    ),
    "a paused group hands out": on(Pauses, "group", property(lambda pauses: None)),
    "what is to be passed over is delivered": on(
        passed_over, "without", lambda chunk, ranges: chunk
    ),
    "one record too many is forced": on(ForcedChange, "decide", _forces_more),
    "members get more than their credit": on(Session, "takes", _no_credit),
    "records of a topic's next life pass for the old one's": on(TopicLife, "admit", _no_life),
    "the window has no limit": on(group_actor, "settings_of", _no_window),
    "a key goes on at another member": on(Admission, "_is_open", _any_holder),
    "a key is out in a topic and in its letters": on(SharedKeys, "bars", _no_bar),
    "a broken chain goes on": on(share_partition, "take_back_chains", _chain_goes_on),
    "a blocked key is handed out": on(group_actor, "settings_of", _nothing_blocked),
    "locks do not end by themselves": on(PartitionActor, "_set_alarm", _no_timer),
    "due records are not looked at": on(Dispatcher, "wake", _not_woken),
}
"""What is wrong, and how to do it wrong for the length of a block."""


OWN_ERROR = re.compile("TypeError|NameError|AttributeError|to unpack")
"""A patch that does not fit the product any more proves nothing."""


def seeds_until_found(patch: Patch, seeds: Iterable[int]) -> tuple[int, str] | None:
    """How many lives it takes until one of them breaks a promise, and which; None = none did."""
    with patch():
        for count, seed in enumerate(seeds, 1):
            try:
                run_life(seed, play)
            except FailedLifeError as error:
                if OWN_ERROR.search(str(error)):
                    raise AssertionError("the mistake itself fails") from error
                first, second, *_ = str(error).split("\n")
                return count, first if second == "last steps:" else second
    return None
