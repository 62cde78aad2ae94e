"""Dead letters listed and shown: those that wait, those in their topic, page by page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sharecoord.core.letters.dead_letters import KAFKA_PREFIX
from sharecoord.core.letters.filter import LetterFilter
from sharecoord.errors import (
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    KafkaUnavailableError,
    UnknownDeadLetterError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import OutgoingMessage
from sharecoord.runtime.admin import letters as admin_letters
from sharecoord.runtime.admin.letters import LetterPage
from sharecoord.runtime.letters.scan import FoundLetter, LetterPlace, LetterState
from tests.unit.admin.letters import NAME, deliver, put, reject, with_letters
from tests.unit.admin.support import Bench, virtual

ALL = LetterFilter()


async def listed(bench: Bench, wanted: LetterFilter = ALL, **more: Any) -> LetterPage:
    return await bench.admin.list_dead_letters(more.pop("group", "g"), wanted, **more)


def offsets(page: LetterPage) -> list[int]:
    return [found.letter.offset for found in page.letters]


@virtual
async def test_letters_in_their_topic_are_listed(bench: Bench) -> None:
    await reject(await with_letters(bench), 3, 7)
    page = await listed(bench)
    assert offsets(page) == [3, 7]
    found = page.letters[1]
    assert found.state is LetterState.IN_TOPIC
    assert found.place == LetterPlace("dead", 0, 1)
    letter = found.letter
    assert (letter.topic, letter.partition, letter.reason) == ("orders", 0, "REJECTED")
    assert (letter.value, letter.delivery_count, letter.member_id) == (b"7", 1, "m-g")
    assert page.next == ""
    assert bench.log.scans == 0


@virtual
async def test_letters_that_wait_come_first(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 5)
    bench.world.dead_letters.down = True
    bench.log.append("orders", 100)
    await reject(member, 150, 160)
    page = await listed(bench)
    assert offsets(page) == [150, 160, 5]
    states = [found.state for found in page.letters]
    assert states == [LetterState.WAITING, LetterState.WAITING, LetterState.IN_TOPIC]
    assert page.letters[0].place is None
    assert page.letters[0].letter.value == b"150"


@virtual
async def test_a_letter_that_has_just_arrived_is_in_its_topic(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 5)
    # Kafka has the letters; the outbox does not hear of it.
    bench.world.dead_letters.forgets = True
    bench.log.append("orders", 100)
    await reject(member, 150, 160)
    page = await listed(bench)
    assert offsets(page) == [5, 150, 160]
    assert {found.state for found in page.letters} == {LetterState.IN_TOPIC}


@virtual
async def test_groups_that_share_a_topic_see_their_own(bench: Bench) -> None:
    await reject(await with_letters(bench), 1)
    await reject(await with_letters(bench, "other"), 2, 3)
    put(bench, OutgoingMessage(None, b"no letter", [("h", b"x")]))
    assert offsets(await listed(bench)) == [1]
    assert offsets(await listed(bench, group="other")) == [2, 3]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_pages_together_are_everything_once(size: int) -> None:
    @virtual
    async def run(bench: Bench) -> None:
        deliver(bench, partitions=3)
        member = await with_letters(bench)
        # Three partitions, and gaps in them.
        count = 0

        def spread(message: OutgoingMessage) -> None:
            nonlocal count
            count += 1
            put(bench, message, count % 3)
            if count % 5 == 0:
                bench.log.skip("dead", 30, partition=count % 3)

        bench.world.dead_letters.on_arrival = spread
        await reject(member, *range(50))
        bench.world.dead_letters.down = True
        bench.log.append("orders", 100)
        await reject(member, *range(150, 160))
        found, after = list[FoundLetter](), ""
        for _ in range(200):
            page = await listed(bench, max_letters=size, after=after)
            assert len(page.letters) <= size
            found += page.letters
            after = page.next
            if not after:
                break
        assert after == ""
        assert sorted(each.letter.offset for each in found) == [*range(50), *range(150, 160)]
        assert [each.state for each in found] == sorted(
            (each.state for each in found), key=list(LetterState).index
        )

    run()


@virtual
async def test_filters_are_for_both(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 5, 6)
    bench.world.dead_letters.down = True
    bench.log.append("orders", 100)
    await reject(member, 150)
    place: dict[str, Any] = {"topic": "orders", "partitions": (0,)}
    assert offsets(await listed(bench, LetterFilter(**place, last_offset=5))) == [5]
    assert offsets(await listed(bench, LetterFilter(**place, first_offset=6))) == [150, 6]
    assert offsets(await listed(bench, LetterFilter(reasons=("DELIVERY_LIMIT",)))) == []


@virtual
async def test_a_page_ends_after_so_many_bytes_or_so_much_time(bench: Bench) -> None:
    await reject(await with_letters(bench), *range(90))
    wanted = LetterFilter(text="nothing says so")
    for name, value in (("PAGE_READ_BYTES", 1), ("PAGE_READ_S", 0.0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(admin_letters, name, value)
            page = await listed(bench, wanted)
            assert page == LetterPage((), "topic:0:20")
            page = await listed(bench, wanted, after="topic:0:80")
            assert page.next == "topic:0:90"
            assert await listed(bench, wanted, after="topic:0:90") == LetterPage(())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admin_letters, "PAGE_ANSWER_BYTES", 100)
        page = await listed(bench)
        assert 0 < len(page.letters) < 5


@virtual
async def test_a_caller_that_goes_away_ends_the_scan(bench: Bench) -> None:
    await reject(await with_letters(bench), *range(90))
    task = asyncio.create_task(listed(bench))
    while not bench.log.scans:  # noqa: ASYNC110 - on virtual time nothing waits
        await asyncio.sleep(0.0005)
    task.cancel()
    await asyncio.wait([task])
    assert bench.log.scans == 0


@virtual
async def test_one_letter_whole_by_id_and_by_place(bench: Bench) -> None:
    odd: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("\udcff", b"")]
    bench.log.log("orders").records[5].headers = odd
    bench.log.log("orders").records[5].key = b"\x00"
    member = await with_letters(bench)
    await reject(member, 4, 5)
    (_, wanted) = (await listed(bench)).letters
    by_id = await bench.admin.show_dead_letter("g", letter_id=wanted.letter.id)
    by_place = await bench.admin.show_dead_letter("g", place=LetterPlace("", 0, 1))
    assert by_id == by_place
    letter = by_id.letter.letter
    assert (letter.key, letter.value) == (b"\x00", b"5")
    assert list(letter.headers) == odd
    texts = [step.text for step in by_id.steps]
    assert texts[0] == "written to orders[0] at offset 5"
    assert texts[1].startswith("rejected by m-g, delivery 1: ")
    assert texts[2] == "dead letter in dead[0] at offset 1"
    bench.world.dead_letters.down = True
    bench.log.append("orders", 100)
    await reject(member, 150)
    waiting = (await listed(bench)).letters[0]
    view = await bench.admin.show_dead_letter("g", letter_id=waiting.letter.id)
    assert view.letter == waiting
    assert view.steps[-1].text == "waits in the outbox for its topic"


@virtual
async def test_what_the_topic_did_not_take_is_shown_from_the_store(bench: Bench) -> None:
    bench.world.dead_letters.most_bytes = 0
    await reject(await with_letters(bench), 5)
    await asyncio.sleep(100)
    (found,) = (await listed(bench)).letters
    assert (found.letter.payload, found.letter.value, found.place) == (
        "kept",
        None,
        LetterPlace("dead", 0, 0),
    )
    view = await bench.admin.show_dead_letter("g", letter_id=found.letter.id)
    assert view.letter.letter.value == b"5"


@virtual
async def test_a_topic_that_a_group_had_can_be_named(bench: Bench) -> None:
    await reject(await with_letters(bench), 5)
    await bench.admin.alter_group_configs("g", {}, [NAME])
    with pytest.raises(InvalidConfigError, match="has no dead-letter topic"):
        await listed(bench)
    assert offsets(await listed(bench, topic="dead")) == [5]
    view = await bench.admin.show_dead_letter("g", place=LetterPlace("", 0, 0), topic="dead")
    assert view.letter.letter.offset == 5


@virtual
async def test_what_waits_is_listed_though_its_topic_is_gone(bench: Bench) -> None:
    member = await with_letters(bench)
    bench.world.dead_letters.down = True
    bench.log.delete("dead")
    with pytest.raises(UnknownTopicOrPartitionError, match="'dead' of group 'g' does not exist"):
        await listed(bench)
    await reject(member, 5)
    assert offsets(await listed(bench)) == [5]


@virtual
async def test_bad_requests_are_refused_by_name(bench: Bench) -> None:
    await with_letters(bench)
    show = bench.admin.show_dead_letter
    with pytest.raises(GroupNotFoundError, match="'nobody'"):
        await listed(bench, group="nobody")
    with pytest.raises(InvalidRequestError, match=r"filter\.reasons"):
        await listed(bench, LetterFilter(reasons=("x",)))
    with pytest.raises(InvalidRequestError, match="max_letters is 1001"):
        await listed(bench, max_letters=1_001)
    for after in ("x", "topic:1", "topic:-1:0", "topic:1:2:3", "outbox:٣:1", f"topic:0:{10**18}"):
        with pytest.raises(InvalidRequestError, match="after is"):
            await listed(bench, after=after)
    with pytest.raises(InvalidRequestError, match="letter is not set"):
        await show("g")
    with pytest.raises(UnknownDeadLetterError, match="no dead letter nothing"):
        await show("g", letter_id="nothing")
    for partition, offset in ((0, 0), (5, 0), (0, -1)):
        with pytest.raises(UnknownDeadLetterError, match=r"dead\["):
            await show("g", place=LetterPlace("", partition, offset))
    with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
        await show("g", place=LetterPlace("", 0, 0), topic="nowhere")
    bench.log.set_down(down=True)
    with pytest.raises(KafkaUnavailableError):
        await listed(bench)


@virtual
async def test_another_groups_letter_is_not_shown(bench: Bench) -> None:
    await reject(await with_letters(bench, "other"), 2)
    await with_letters(bench)
    with pytest.raises(UnknownDeadLetterError):
        await bench.admin.show_dead_letter("g", place=LetterPlace("", 0, 0))
    view = await bench.admin.show_dead_letter("other", place=LetterPlace("", 0, 0))
    assert (KAFKA_PREFIX + "group") not in dict(view.letter.letter.headers)
