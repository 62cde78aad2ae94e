"""What requests of a session name, and what they leave out."""

from __future__ import annotations

from typing import Any

from kio.schema.fetch.v12.request import FetchRequest
from kio.serial import entity_reader

from sharecoord.kafka.wire import fetch_session
from sharecoord.kafka.wire.fetch import Wanted
from sharecoord.kafka.wire.fetch_session import FetchSession


def wanted(partition: int, offset: int) -> Wanted:
    return Wanted(partition, offset, 0, 0, 1000)


def sent(session: FetchSession[str]) -> Any:
    body = session.request(max_wait_ms=1, min_bytes=1, max_bytes=1, committed=False, rack="")
    found, _ = entity_reader(FetchRequest)(body, 0)
    return found


def named(request: Any) -> list[tuple[int, int]]:
    return [
        (part.partition, part.fetch_offset) for each in request.topics for part in each.partitions
    ]


def forgotten(request: Any) -> list[int]:
    return [n for each in request.forgotten_topics_data for n in each.partitions]


def begun(*partitions: int) -> FetchSession[str]:
    session: FetchSession[str] = FetchSession()
    for number in partitions:
        assert session.put(("t", number), wanted(number, 0), "who")
    assert named(sent(session)) == [(number, 0) for number in partitions]
    session.answered(77)
    return session


def test_only_changes_are_named() -> None:
    session = begun(0, 1, 2)
    assert not session.put(("t", 0), wanted(0, 0), "who")
    assert session.put(("t", 1), wanted(1, 5), "who")
    session.drop(("t", 2))
    request = sent(session)
    assert (named(request), forgotten(request)) == ([(1, 5)], [2])
    assert (request.session_id, request.session_epoch) == (77, 1)
    session.answered(77)
    request = sent(session)
    assert (named(request), forgotten(request), request.session_epoch) == ([], [], 2)


def test_what_comes_back_before_the_request_is_not_forgotten() -> None:
    session = begun(0, 1)
    session.drop(("t", 0))
    session.put(("t", 0), wanted(0, 0), "who")
    request = sent(session)
    assert (named(request), forgotten(request)) == ([(0, 0)], [])


def test_another_session_ends_the_one_before() -> None:
    session = begun(0, 1)
    assert session.renew() == ["who", "who"]
    session.put(("t", 1), wanted(1, 3), "who")
    request = sent(session)
    assert (request.session_id, request.session_epoch) == (77, 0)
    assert (named(request), forgotten(request)) == ([(1, 3)], [])
    session.renew()
    session.forget_id()
    assert sent(session).session_id == 0


def test_a_broker_that_remembers_nothing_is_told_all() -> None:
    session = begun(0, 1)
    session.renew()
    for number in (0, 1):
        session.put(("t", number), wanted(number, 0), "who")
    sent(session)
    session.answered(0)
    session.to_end(("t", 0))
    assert named(sent(session)) == [(1, 0), (0, 0)]


def test_epochs_begin_again_at_one() -> None:
    session = begun(0)
    session._epoch = fetch_session.EPOCH_MAX
    assert sent(session).session_epoch == 2**31 - 1
    session.answered(77)
    assert sent(session).session_epoch == 1
