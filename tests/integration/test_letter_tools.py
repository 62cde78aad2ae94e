"""`dead-letters` on a real Kafka, by the admin clients and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from sharecoord_sdk import AdminClient, AsyncAdminClient
from sharecoord_sdk.admin import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterState,
    InvalidRequestError,
    UnknownDeadLetterError,
)

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.acceptance.bad_input import run_cli
from tests.integration.test_dead_letters import reject_all, set_topic
from tests.support import eventually, unique_name

WAIT_S = 60
ODD = [("a", b"1"), ("a", b"\xff\x00"), ("none", None), ("", b"")]


def all_letters(
    admin: AdminClient, group: str, wanted: DeadLetterFilter | None = None, *, page: int = 1_000
) -> list[DeadLetter]:
    """The letters of all pages."""
    found, after = list[DeadLetter](), ""
    while True:
        got = admin.list_dead_letters(group, wanted, max_letters=page, after=after)
        found += got.letters
        after = got.next
        if not after:
            return found


def test_letters_are_listed_filtered_and_shown(
    topic: Callable[..., str], topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name, dead, group, other = topic(), topic(partitions=3), unique_name("g"), unique_name("g")
    records = [(f"k{n}".encode(), f"value {n}".encode(), None) for n in range(40)]
    topics.produce(name, [(b"\x00\xff", b"\xfe", ODD), *records])
    for each, reason in ((group, "no amount"), (other, "other")):
        set_topic(coordinator, each, dead)
        reject_all(coordinator, each, name, 41, reason=reason)
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:

        def are_in_their_topic() -> list[DeadLetter]:
            found = all_letters(admin, group, page=7)
            states = [letter.state for letter in found]
            return found if states == [DeadLetterState.IN_TOPIC] * 41 else []

        found = eventually(are_in_their_topic, WAIT_S, what="letters")
        assert sorted(letter.offset for letter in found) == list(range(41))
        assert {letter.message for letter in found} == {"no amount"}
        assert {letter.place[0] for letter in found if letter.place} == {dead}
        wanted = DeadLetterFilter(key_prefix=b"k1", reasons=["REJECTED"], text="AMOUNT")
        keys = {letter.key for letter in all_letters(admin, group, wanted)}
        assert keys == {b"k1", *(f"k1{n}".encode() for n in range(10))}
        (first,) = all_letters(admin, group, DeadLetterFilter(headers=[("a", b"\xff\x00")]))
        details = admin.show_dead_letter(group, first.id)
        assert (details.letter, details.value) == (first, b"\xfe")
        assert list(details.headers) == ODD
        assert first.place is not None
        assert admin.show_dead_letter(group, place=first.place[1:]) == details
        with pytest.raises(UnknownDeadLetterError, match="no dead letter in"):
            admin.show_dead_letter(other, place=first.place[1:])
        with pytest.raises(InvalidRequestError, match=r"filter\.partitions needs filter\.topic"):
            admin.list_dead_letters(group, DeadLetterFilter(partitions=[0]))
    address = ("--bootstrap-server", coordinator.address, "--group", group)
    listed = run_cli("dead-letters", "list", *address, "--offsets", "3-4", "--topic", name,
                     "--partition", "0", "-o", "json")  # fmt: skip
    assert {row["key"] for row in json.loads(listed.out)} == {"k2", "k3"}
    shown = run_cli("dead-letters", "show", first.id, *address)
    assert "hex:00ff" in shown.out


async def test_the_async_client_does_the_same(
    topic: Callable[..., str], topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name, dead, group = topic(), unique_name("nowhere"), unique_name("g")
    topics.produce(name, 2)
    topics.create(dead, partitions=1)
    set_topic(coordinator, group, dead)
    topics.delete(dead)
    reject_all(coordinator, group, name, 2)
    async with AsyncAdminClient({"bootstrap.servers": coordinator.address}) as admin:
        page = await admin.list_dead_letters(group)
        assert [letter.state for letter in page.letters] == [DeadLetterState.WAITING] * 2
        details = await admin.show_dead_letter(group, page.letters[1].id)
        assert details.letter == page.letters[1]
        assert details.steps[-1] == (0, "waits in the outbox for its topic")
