"""A coordinator that goes down (DrainNotice): what goes back, what waits, where to go next."""

from __future__ import annotations

import pytest
from sharecoord_sdk import KafkaException
from sharecoord_sdk._core.link import Phase
from sharecoord_sdk._core.records import AcknowledgeType
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service_pb

from tests.sdk.driver import EXPLICIT
from tests.sdk.fake_coordinator import Ack, make_batch
from tests.sdk.world import World, take_notices


def draining(world: World, *addresses: str, grace_ms: int = 2000) -> None:
    """The coordinator says that it goes down."""
    world.receive(drain=service_pb.DrainNotice(addresses=addresses, grace_ms=grace_ms))


def flush(world: World) -> None:
    """What a waiting poll does when something arrived."""
    world.core.flush(world.now, polling=True)
    world.drive()


def joins(world: World) -> list[service_pb.Join]:
    """Every join that was sent."""
    return [request.join for request in world.sent if request.HasField("join")]


def test_records_that_no_handler_has_seen_go_back_and_the_rest_stays() -> None:
    world = World(max_poll_records=2, **EXPLICIT)
    world.join()
    world.receive(make_batch([b"%d" % i for i in range(5)], token=9))
    (span,) = world.poll()
    draining(world, "c:3")
    assert not world.core.take(world.now, object()).spans, "nothing more reaches the handler"
    flush(world)
    assert world.acks() == [Ack("t", 0, 2, 4, "RETURN", 9)]
    assert world.opened == ["a:1"], "it waits for the answer"
    world.answer()
    world.drive()
    assert world.opened == ["a:1", "c:3"]
    (held,) = joins(world)[-1].lock_book
    assert (held.first_offset, held.last_offset, held.lock_token) == (0, 1, 9)
    assert joins(world)[-1].credit.records_total == joins(world)[0].credit.records_total
    span.mark(AcknowledgeType.ACCEPT)
    world.core.begin_commit(world.now)
    world.drive()
    assert world.acks()[-1] == Ack("t", 0, 0, 1, "ACCEPT", 9)


def test_pending_acknowledgements_go_out_before_the_move() -> None:
    world = World(max_poll_records=2)
    world.join()
    world.receive(make_batch([b"a", b"b", b"c"]))
    world.poll()
    ticket = world.core.begin_commit(world.now)
    draining(world)
    flush(world)
    assert [ack.kind for ack in world.acks()] == ["ACCEPT", "RETURN"]
    for request in [r for r in world.sent if r.acknowledge_id]:
        assert world.core.link.phase is Phase.JOINED
        result = service_pb.AcknowledgeResult(acknowledge_id=request.acknowledge_id)
        world.receive(results=[result])
        world.drive()
    assert ticket.is_done
    assert ticket.results == {("t", 0): None}
    assert world.opened == ["a:1", "a:1"], "no address = the same one"


def test_with_nothing_under_way_it_moves_at_once() -> None:
    world = World()
    world.join()
    draining(world, "c:3", "d:4")
    world.drive()
    assert world.opened == ["a:1", "c:3"]


def test_records_that_come_after_the_notice_go_back_too() -> None:
    world = World()
    world.join()
    world.receive(make_batch([b"a"], token=1))
    draining(world, "c:3")
    world.receive(make_batch([b"b"], base=1, token=2))
    flush(world)
    assert world.acks() == [Ack("t", 0, 0, 0, "RETURN", 1), Ack("t", 0, 1, 1, "RETURN", 2)]


def test_a_coordinator_that_goes_down_is_promised_no_credit() -> None:
    world = World(sharecoord_buffer_records=8)
    world.join()
    world.receive(make_batch([b"x"] * 8))
    world.sent.clear()
    draining(world)
    flush(world)
    assert world.acks() != []
    assert not any(request.HasField("credit") for request in world.sent)


def test_without_an_answer_it_moves_when_the_grace_is_over_and_shows_its_acknowledgements() -> None:
    world = World()
    world.join()
    world.receive(make_batch([b"a", b"b"], token=5))
    world.poll()
    draining(world, "c:3", grace_ms=1500)
    world.core.begin_commit(world.now)
    world.drive()
    assert world.core.wake_at(world.now) == world.now + 1.5
    world.now += 1.499
    world.drive()
    assert world.opened == ["a:1"]
    world.now += 0.001
    world.drive()
    assert world.opened == ["a:1", "c:3"]
    assert [(h.first_offset, h.last_offset) for h in joins(world)[-1].lock_book] == [(0, 1)]
    assert [ack.kind for ack in world.acks()] == ["ACCEPT", "ACCEPT"], "sent again"


@pytest.mark.parametrize(("addresses", "opened"), [(("c:3",), ["a:1", "c:3"]), ((), ["a:1"])])
def test_a_stream_that_ends_before_the_answers_is_no_alarm(
    addresses: tuple[str, ...], opened: list[str]
) -> None:
    """With an address it goes there at once; without one it backs off as after any end."""
    world = World()
    world.join()
    world.receive(make_batch([b"a"]))
    draining(world, *addresses)
    flush(world)
    take_notices(world.core)
    world.fail(StreamFailure("UNAVAILABLE", "server is stopping"))
    world.drive()
    assert world.opened == opened
    assert [notice.text for notice in take_notices(world.core)] == []
    world.now += 1
    world.drive()
    assert world.opened[-1] == (addresses or ("a:1",))[-1]


def test_a_refusal_during_a_drain_is_still_told() -> None:
    world = World()
    world.join()
    world.receive(make_batch([b"a"]))
    draining(world, "c:3")
    world.fail(StreamFailure("PERMISSION_DENIED", "you may not"))
    with pytest.raises(KafkaException, match="you may not"):
        world.core.check_poll()


def test_the_next_stream_is_not_drained() -> None:
    world = World()
    world.join()
    draining(world, "c:3")
    world.drive()
    world.receive(joined=service_pb.Joined())
    world.receive(make_batch([b"a"]))
    assert len(world.poll()) == 1
    assert world.opened == ["a:1", "c:3"]


def test_an_attempt_that_was_given_up_leaves_no_drain_behind() -> None:
    world = World(socket_connection_setup_timeout_ms=1000)
    world.core.subscribe(["t"], world.now)
    world.drive()
    world.receive(make_batch([b"a"]))
    draining(world, "c:3", grace_ms=60_000)
    flush(world)
    for _ in range(4):
        world.now += 1
        world.drive()
    world.receive(joined=service_pb.Joined())
    world.receive(make_batch([b"b"], base=1))
    assert len(world.poll()) == 1


def test_who_leaves_a_draining_coordinator_goes_nowhere() -> None:
    world = World()
    world.join()
    world.receive(make_batch([b"a"]))
    draining(world, "c:3")
    world.core.begin_close(world.now)
    world.drive()
    assert world.sent[-1].leave
    world.answer()
    world.now += 10
    world.drive()
    done = [world.core.is_close_done]
    world.receive(left=True)
    done.append(world.core.is_close_done)
    assert done == [False, True]
    assert world.opened == ["a:1"]
