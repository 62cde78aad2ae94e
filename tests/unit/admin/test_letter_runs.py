"""Redrive and discard: exactly what is meant, once, whatever happens in the middle."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from sharecoord.core.letters.dead_letters import KAFKA_PREFIX, PAYLOAD_HEADER
from sharecoord.core.letters.filter import LetterFilter
from sharecoord.core.letters.lanes import MarkKind
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    LimitExceededError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.admin import letters as admin_letters
from sharecoord.runtime.letters import plan as letter_plan
from sharecoord.runtime.letters.plan import LetterCommand, LetterRun
from sharecoord.runtime.letters.scan import LetterPlace, LetterState
from sharecoord.store.book_entries import DEAD_LETTER, KEPT_PAYLOAD
from sharecoord.testing.harness import FakeMember
from tests.unit.admin.letters import NAME, deliver, put, reject, with_letters
from tests.unit.admin.support import Bench, virtual

ACCEPT, REJECT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.RELEASE
REDRIVE, DISCARD = MarkKind.REDRIVEN, MarkKind.DISCARDED


async def run(bench: Bench, kind: MarkKind = REDRIVE, **more: Any) -> LetterRun:
    """A run over all letters of `g`, or over what is given; `dead` is the dead-letter topic."""
    wanted = {name: more.pop(name) for name in list(more) if name in LetterFilter.__slots__}
    dead = more.pop("dead", "")
    meant = LetterFilter(**wanted)
    command = LetterCommand("g", meant, all_letters=not wanted, topic=dead, **more)
    if kind is DISCARD:
        return await bench.admin.discard_dead_letters(command)
    return await bench.admin.redrive_dead_letters(command)


def first_of(result: LetterRun) -> list[int]:
    return [found.letter.offset for found in result.first]


async def states(bench: Bench) -> dict[int, str]:
    page = await bench.admin.list_dead_letters("g", LetterFilter(), max_letters=1_000)
    return {found.letter.offset: found.state.value for found in page.letters}


async def come(
    member: FakeMember, count: int, kind: AcknowledgeType = ACCEPT
) -> list[tuple[int, bytes | None, int]]:
    """Offset in the dead-letter topic, value and count of so many records, which are settled."""
    found = []
    while len(found) < count:
        delivery = await member.next_delivery()
        assert delivery.key.served == "orders"
        for each in delivery.ranges:
            for offset in range(each.first, each.last + 1):
                (chunk,) = (
                    s.chunk for s in delivery.slices if s.chunk.first <= offset <= s.chunk.last
                )
                at = chunk.span(offset, offset)[0]
                found.append((offset, chunk.values[at], each.delivery_count))
        await member.acknowledge(delivery, kind)
    assert len(found) == count
    await asyncio.sleep(1)
    return found


async def nothing_comes(member: FakeMember) -> None:
    await asyncio.sleep(60)
    assert member.deliveries == []


async def with_kept_letters(bench: Bench, *offsets: int) -> FakeMember:
    """A member of whose letters the topic did not take the records."""
    member = await with_letters(bench)
    bench.world.dead_letters.most_bytes = 1
    await reject(member, *offsets)
    await asyncio.sleep(100)
    return member


async def with_letters_of_three(bench: Bench) -> FakeMember:
    """A member whose letters go to three partitions in turn."""
    deliver(bench, partitions=3)
    member = await with_letters(bench)
    arrived = itertools.count()
    bench.world.dead_letters.on_arrival = lambda m: put(bench, m, next(arrived) % 3)
    return member


@virtual
async def test_a_dry_run_says_what_the_redrive_does(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4, 7, 9)
    place = {"topic": "orders", "partitions": (0,), "first_offset": 4}
    dry = await run(bench, dry_run=True, **place)
    assert (dry.letters, dry.parts, first_of(dry)) == (3, {("orders", 0): 3}, [4, 7, 9])
    assert (dry.run_id, dry.more) == ("", False)
    await nothing_comes(member)
    done = await run(bench, **place)
    assert replace(done, run_id="") == dry
    assert done.run_id
    assert await come(member, 3) == [(1, b"4", 1), (2, b"7", 1), (3, b"9", 1)]
    await nothing_comes(member)
    assert await states(bench) == {3: "in topic", 4: "redriven", 7: "redriven", 9: "redriven"}


@virtual
async def test_a_second_redrive_takes_nothing_unless_asked(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4)
    await run(bench)
    assert len(await come(member, 2)) == 2
    second = await run(bench)
    assert (second.letters, second.redriven, second.run_id, second.parts) == (0, 2, "", {})
    await nothing_comes(member)
    again = await run(bench, again=True)
    assert (again.letters, again.redriven) == (2, 0)
    assert {count for _, _, count in await come(member, 2)} == {1}


@virtual
async def test_what_is_under_way_is_not_redriven_twice(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4)
    await bench.leave(member)
    assert (await run(bench)).letters == 2
    for dry_run in (True, False):
        again = await run(bench, again=True, dry_run=dry_run)
        assert (again.letters, again.under_way, again.redriven) == (0, 2, 0)
    await come(await bench.member("m2"), 2)


@virtual
async def test_discarded_letters_are_left_alone_unless_asked_for(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4, 5)
    done = await run(bench, DISCARD, dead="dead", ids=(await id_of(bench, 4),))
    assert (done.letters, first_of(done)) == (1, [4])
    assert await states(bench) == {3: "in topic", 4: "discarded", 5: "in topic"}
    assert (await run(bench, DISCARD)).discarded == 1
    assert await states(bench) == dict.fromkeys((3, 4, 5), "discarded")
    left = await run(bench)
    assert (left.letters, left.discarded) == (0, 3)
    assert (await run(bench, again=True)).letters == 0
    await nothing_comes(member)
    assert (await run(bench, discarded=True)).letters == 3
    assert len(await come(member, 3)) == 3


async def id_of(bench: Bench, offset: int) -> str:
    page = await bench.admin.list_dead_letters("g", LetterFilter())
    (found,) = (each for each in page.letters if each.letter.offset == offset)
    return found.letter.id


@virtual
async def test_a_letter_that_is_there_twice_is_redriven_once(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4)
    for message in list(bench.world.dead_letters.topics["dead"]):
        put(bench, message)
    done = await run(bench)
    assert (done.letters, done.copies) == (2, 2)
    assert [offset for offset, _, _ in await come(member, 2)] == [0, 1]
    # Retention takes the first copies, and with them what their marks were about.
    bench.log.move_log_start("dead", 2)
    after = await run(bench, again=True)
    assert (after.letters, after.discarded) == (0, 2)
    await nothing_comes(member)


@virtual
async def test_only_this_groups_members_get_this_groups_letters(bench: Bench) -> None:
    member, other = await with_letters(bench), await with_letters(bench, "other")
    await reject(member, 3)
    await reject(other, 5, 6)
    assert (await run(bench)).letters == 1
    assert [value for _, value, _ in await come(member, 1)] == [b"3"]
    await nothing_comes(other)
    await nothing_comes(member)


@virtual
async def test_letters_without_their_record_are_counted_by_payload(bench: Bench) -> None:
    member = await with_kept_letters(bench, 3, 40, 41)
    await bench.admin.alter_group_configs(
        "g", {"errors.deadletterqueue.copy.record.enable": "false"}, []
    )
    bench.log.append("orders", 100)
    await reject(member, 150)
    bench.world.dead_letters.down = True
    bench.log.append("orders", 100)
    await reject(member, 250, 251)
    for part in bench.world.database.partitions.values():
        # As when the group was deleted and made again.
        letters = part.entries[DEAD_LETTER]
        part.entries[DEAD_LETTER] = {at: each for at, each in letters.items() if not each.kept}
    for dry_run in (True, False):
        found = await run(bench, dry_run=dry_run)
        assert (found.letters, found.waiting) == (1, 2)
        assert found.not_redrivable == {"kept": 2, "off": 1}
    assert [value for _, value, _ in await come(member, 1)] == [b"3"]
    discarded = await run(bench, DISCARD)
    assert (discarded.letters, discarded.redriven, discarded.not_redrivable) == (3, 1, {})


def kept_of_lanes(bench: Bench) -> dict[int, bytes | None]:
    parts = bench.world.database.partitions.values()
    lanes = [part.entries[KEPT_PAYLOAD] for part in parts if part.row.key.lane]
    return {offset: each.value for kept in lanes for offset, each in kept.items()}


@virtual
async def test_what_is_too_large_for_its_topic_is_redriven_from_the_store(bench: Bench) -> None:
    for record in bench.log.log("orders").records:
        record.headers = [("own", b"%d" % record.offset)]
    member = await with_kept_letters(bench, 3, 40, 41)
    assert (await run(bench, DISCARD, key_prefix=b"nobody's")).letters == 0
    assert (await run(bench, dry_run=True)).letters == 3
    assert kept_of_lanes(bench) == {}
    assert (await run(bench)).letters == 3
    assert kept_of_lanes(bench) == {1: b"40", 2: b"41"}
    bench.log.move_log_start("dead", 3)
    delivery = await member.next_delivery()
    assert [(r.first, r.last) for r in delivery.ranges] == [(1, 2)], "the topic has lost the rest"
    headers = delivery.slices[0].chunk.headers[0]
    told = {name: value for name, value in headers if value is not None}
    assert (told["own"], told[KAFKA_PREFIX + "offset"]) == (b"40", b"40")
    assert told[PAYLOAD_HEADER] == b"whole"
    await member.acknowledge(delivery, REJECT, first=2, last=2)
    await member.acknowledge(delivery, ACCEPT, first=1, last=1)
    await asyncio.sleep(100)
    assert kept_of_lanes(bench) == {}
    # It was too large again, and is another letter now: of the lane's, and kept with it.
    assert (await run(bench)).letters == 1
    assert await come(member, 1) == [(3, b"41", 1)]
    assert kept_of_lanes(bench) == {}
    await nothing_comes(member)


@virtual
async def test_what_is_taken_back_needs_no_payload(bench: Bench) -> None:
    member = await with_kept_letters(bench, 40, 41)
    await bench.leave(member)
    for again in (False, True):
        assert (await run(bench, again=again)).letters == 2
        assert len(kept_of_lanes(bench)) == 2
        assert await bench.admin.withdraw_redrive("g") == 2
        assert kept_of_lanes(bench) == {}


@virtual
async def test_one_call_takes_so_many_bytes_of_what_its_topic_did_not_take(bench: Bench) -> None:
    member = await with_kept_letters(bench, 40, 41, 42)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(letter_plan, "KEPT_BYTES_MAX", 1_000)
        parts = [await run(bench) for _ in range(3)]
    assert [(part.letters, part.more) for part in parts] == [(2, True), (1, False), (0, False)]
    assert sorted(value for _, value, _ in await come(member, 3)) == [b"40", b"41", b"42"]


@virtual
async def test_a_redrive_in_parts_goes_on_where_it_ended(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, *range(0, 50, 2))
    found: list[int] = []
    for left in (15, 5, 0):
        part = await run(bench, max_letters=10)
        assert part.letters == 10 if left else 5
        assert part.more == bool(left)
        found += [offset for offset, _, _ in await come(member, part.letters)]
    assert sorted(found) == list(range(25))
    assert (await run(bench)).letters == 0


@pytest.mark.parametrize(
    ("module", "name", "value"), [(letter_plan, "LETTERS_MAX", 4), (letter_plan, "SPANS_MAX", 4)]
)
def test_one_call_takes_so_many(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: int
) -> None:
    monkeypatch.setattr(module, name, value)

    @virtual
    async def play(bench: Bench) -> None:
        member = await with_letters(bench)
        bench.world.dead_letters.on_arrival = lambda m: (put(bench, m), bench.log.skip("dead"))[1]
        await reject(member, *range(10))
        assert [((r := await run(bench)).letters, r.more) for _ in range(3)] == [
            (4, True),
            (4, True),
            (2, False),
        ]
        await come(member, 10)

    play()


@virtual
async def test_too_much_to_look_through_is_said(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(letter_plan, "SEEN_MAX", 0)
        with pytest.raises(LimitExceededError, match="narrow the filter"):
            await run(bench)
        patch.undo()
        patch.setattr(admin_letters, "RUN_READ_S", 0.001)
        with pytest.raises(LimitExceededError, match="looking through dead took more than"):
            await run(bench)
    assert bench.log.scans == 0
    assert await states(bench) == {3: "in topic", 4: "in topic"}


@virtual
async def test_unclear_requests_are_refused_by_name(bench: Bench) -> None:
    await with_letters(bench)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"all_letters": False}, r"filter is empty: .* set all \(--all\)"),
        ({"all_letters": True, "wanted": LetterFilter(text="x")}, "exclude each other"),
        ({"max_letters": 250_001}, "max_letters is 250001; 1 to 250000"),
        ({"rate_per_s": 1_000_001}, "rate_per_s is 1000001; 1 to 1000000"),
        ({"all_letters": False, "wanted": LetterFilter(key_prefix=b"")}, "key_prefix is empty"),
    ]
    for fields, text in refused:
        for call in (bench.admin.redrive_dead_letters, bench.admin.discard_dead_letters):
            given: dict[str, Any] = {"wanted": LetterFilter(), "all_letters": True, **fields}
            with pytest.raises(InvalidRequestError, match=text):
                await call(LetterCommand("g", **given))
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
        await run(bench, dead="nowhere", ids=("x",))


@virtual
async def test_a_redriven_record_that_fails_again_is_a_letter_of_its_own(bench: Bench) -> None:
    bench.log.log("orders").records[3].headers = [("trace", b"7")]
    member = await with_letters(bench)
    await reject(member, 3)
    first = await id_of(bench, 3)
    await run(bench)
    await come(member, 1, REJECT)
    page = await bench.admin.list_dead_letters("g", LetterFilter())
    old, new = page.letters
    assert (old.letter.id, old.state) == (first, LetterState.REDRIVEN)
    assert new.state is LetterState.IN_TOPIC
    assert new.letter.id != first
    assert (new.letter.topic, new.letter.partition, new.letter.offset) == ("orders", 0, 3)
    assert list(new.letter.headers) == [("trace", b"7")]
    assert (await run(bench)).letters == 1
    assert [value for _, value, _ in await come(member, 1)] == [b"3"]


@virtual
async def test_a_letter_tells_what_its_redrive_has_come_to(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4, 5)
    discarded = await run(bench, DISCARD, ids=(await id_of(bench, 5),))
    done = await run(bench, rate_per_s=1)
    delivery = await member.next_delivery()

    async def life(place: int) -> list[str]:
        view = await bench.admin.show_dead_letter("g", place=LetterPlace("", 0, place))
        return [step.text for step in view.steps][3:]

    assert delivery.ranges[0].first == 0
    run_text = f"redriven by run {done.run_id}"
    assert await life(0) == [run_text, "m-g holds it, delivery 1"]
    assert await life(1) == [run_text, "waits for its next delivery, after 0"]
    assert await life(2) == [f"discarded by run {discarded.run_id}"]
    await member.acknowledge(delivery)
    await come(member, 1)
    assert await life(0) == [run_text, "finished"]


@virtual
async def test_groups_with_order_keep_it(bench: Bench) -> None:
    for record in bench.log.log("orders").records:
        record.key = b"k"
    await bench.admin.alter_group_configs("g", {"share.ordering": "key"}, [])
    member = await with_letters(bench)
    letters, count = [], 0
    while count < 100:
        delivery = await member.next_delivery()
        count += delivery.records
        letters.append(await member.acknowledge(delivery, REJECT))
    await asyncio.sleep(5)
    assert (await run(bench)).letters == 100
    found = await come(member, 100)
    assert [offset for offset, _, _ in found] == list(range(100))


@pytest.mark.parametrize("happens", [False, True])
@pytest.mark.parametrize("number", range(4))
def test_a_store_that_fails_anywhere_loses_and_doubles_nothing(
    monkeypatch: pytest.MonkeyPatch, number: int, happens: bool
) -> None:
    """At each write of a redrive in turn it fails; the same redrive again does what is left."""

    @virtual
    async def play(bench: Bench) -> None:
        member = await with_letters_of_three(bench)
        await reject(member, *range(30))
        take_in, calls = bench.world.store.take_in, itertools.count()

        def breaks(*args: Any) -> Any:
            if next(calls) != number:
                return take_in(*args)
            if happens:
                take_in(*args)
                raise StoreOutcomeUnknownError("nobody knows")
            raise StoreUnavailableError("away")

        monkeypatch.setattr(bench.world.store, "take_in", breaks)
        if number < 3:
            with pytest.raises(StoreUnavailableError):
                await run(bench)
        await run(bench)
        values = [value for _, value, _ in await come(member, 30)]
        assert sorted(values) == sorted(str(n).encode() for n in range(30))
        await nothing_comes(member)

    play()


@virtual
async def test_a_caller_that_goes_away_leaves_all_or_nothing(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, *range(40))
    was_left, redriven = set(), 0
    for steps in range(60):
        task = asyncio.create_task(run(bench, max_letters=1))
        await asyncio.sleep(steps * 0.0005)
        task.cancel()
        await asyncio.wait([task])
        was_left.add(task.cancelled())
        await asyncio.sleep(1)
        redriven = list((await states(bench)).values()).count("redriven")
        if redriven == 40:
            break
    assert was_left == {True, False}
    assert redriven
    assert len(await come(member, redriven)) == redriven
    await nothing_comes(member)
    assert bench.log.scans == 0


@virtual
async def test_what_was_not_handed_out_is_withdrawn(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4, 5)
    done = await run(bench, rate_per_s=1)
    delivery = await member.next_delivery()
    assert delivery.records == 1
    assert await bench.admin.withdraw_redrive("g") == 2
    await member.settle(delivery)
    await nothing_comes(member)
    assert await states(bench) == {3: "redriven", 4: "in topic", 5: "in topic"}
    assert (done.letters, (await run(bench)).letters) == (3, 2)
    assert [value for _, value, _ in await come(member, 2)] == [b"4", b"5"]
    await bench.admin.alter_group_configs("g", {}, [NAME])
    with pytest.raises(InvalidConfigError, match="has no dead-letter topic"):
        await bench.admin.withdraw_redrive("g")
    with pytest.raises(GroupNotFoundError):
        await bench.admin.withdraw_redrive("nobody")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_rate_too_small_to_be_divided_is_refused(dry_run: bool) -> None:
    @virtual
    async def play(bench: Bench) -> None:
        member = await with_letters_of_three(bench)
        await reject(member, *range(6))
        with pytest.raises(InvalidRequestError, match="rate_per_s is 2, and 3 partitions"):
            await run(bench, rate_per_s=2, dry_run=dry_run)
        assert set((await states(bench)).values()) == {"in topic"}

    play()
