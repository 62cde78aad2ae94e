"""What failures become: `on_error`, `retry`, outcomes of single records of a batch, nonsense."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from sharecoord_sdk import Backoff, BatchOutcome, Message, Reject, Retry
from sharecoord_sdk._worker.failures import LINES_MAX, TRACES_MAX, WINDOW_S
from sharecoord_sdk._worker.options import Behaviour

from tests.sdk.fake_coordinator import Ack, make_batch
from tests.sdk.worker_world import WorkerWorld
from tests.sdk.world import take_notices


def failing_world(
    behaviour: Behaviour, *, count: int = 1, delivery_count: int = 1, **settings: Any
) -> WorkerWorld:
    """A worker that has received records for the nth time."""
    world = WorkerWorld(behaviour=behaviour, **settings)
    world.join()
    values: list[bytes | None] = [b"%d" % at for at in range(count)]
    world.receive(make_batch(values, delivery_count=delivery_count))
    return world


def outcome_of(behaviour: Behaviour, error: BaseException, **settings: Any) -> tuple[str, int, str]:
    """Kind, delay in ms and reason of the acknowledgement after a failure."""
    world = failing_world(behaviour, **settings)
    world.core.settle(world.start(), error)
    world.publish()
    (ack,) = world.acks()
    return ack.kind, ack.delay_ms, ack.reason


# -- by class of exception --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("v"), ("REJECT", 0, "ValueError: v")),
        (UnicodeError("u"), ("RELEASE", 3000, "UnicodeError: u")),
        (TimeoutError("t"), ("RELEASE", 5000, "slow")),
        (KeyError("k"), ("REJECT", 0, "not there")),
        (RuntimeError("r"), ("RELEASE", 0, "RuntimeError: r")),
        (Retry(7), ("RELEASE", 7000, "")),
    ],
)
def test_the_most_specific_class_decides(error: Exception, expected: tuple[str, int, str]) -> None:
    behaviour = Behaviour(
        on_error={
            ValueError: Reject,
            UnicodeError: Retry(3),
            TimeoutError: Retry(5, "slow"),
            LookupError: Reject("not there"),
        }
    )
    assert outcome_of(behaviour, error) == expected


def test_the_log_says_what_became_of_it() -> None:
    world = failing_world(Behaviour(on_error={ValueError: Reject}))
    parts = world.start()
    world.notices()
    world.core.settle(parts, ValueError("v"))
    (text,) = world.notices()
    assert text == "handler handle of t [0] offset 0 failed, the record is rejected: ValueError: v"


@pytest.mark.parametrize(
    ("on_error", "message"),
    [
        ([ValueError], "must be a mapping"),
        ({"ValueError": Reject}, "has exception classes"),
        ({int: Reject}, "has exception classes"),
        ({ValueError: 5}, r"on_error\[ValueError\] must be Retry"),
        ({ValueError: KeyError}, r"on_error\[ValueError\] must be Retry"),
        ({Reject: Retry}, "an outcome already"),
    ],
)
def test_a_map_that_can_not_be_is_refused(on_error: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Behaviour(on_error=on_error)


# -- retry ------------------------------------------------------------------------------------


def test_a_back_off_grows_from_attempt_to_attempt_up_to_its_ceiling() -> None:
    policy = Backoff(first_s=1, multiplier=3, max_s=20, jitter=0)
    waits = [
        outcome_of(Behaviour(retry=policy), OSError("x"), delivery_count=attempt)
        for attempt in (1, 2, 3, 4, 1000)
    ]
    assert waits == [("RELEASE", ms, "OSError: x") for ms in (1000, 3000, 9000, 20_000, 20_000)]


def test_retry_wants_a_time_that_can_be() -> None:
    for bad in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"^after_s must be a finite number and not negative"):
            Retry(bad)
    wrong: Any
    for wrong in ("5", True, [5], 1j, timedelta(seconds=5)):
        name = type(wrong).__name__
        with pytest.raises(TypeError, match=f"^after_s must be a number of seconds, not {name}"):
            Retry(wrong)


def test_a_back_off_of_no_time_is_at_once() -> None:
    behaviour = Behaviour(retry=Backoff(first_s=0))
    assert outcome_of(behaviour, OSError("x")) == ("RELEASE", 1, "OSError: x")


@pytest.mark.parametrize(("chance", "delay_ms"), [(0.0, 800), (0.5, 1000), (0.75, 1100)])
def test_jitter_makes_a_wait_shorter_or_longer(chance: float, delay_ms: int) -> None:
    behaviour = Behaviour(retry=Backoff(1, jitter=0.2))
    assert outcome_of(behaviour, OSError(), chance=chance)[1] == delay_ms


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"first_s": -1}, ValueError),
        ({"first_s": "1"}, TypeError),
        ({"multiplier": 0.5}, ValueError),
        ({"max_s": float("inf")}, ValueError),
        ({"jitter": 1.5}, ValueError),
        ({"jitter": True}, TypeError),
    ],
)
def test_a_back_off_that_can_not_be_is_refused(
    arguments: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=next(iter(arguments))):
        Backoff(**arguments)


def test_a_function_of_message_and_attempt_says_how_long_to_wait() -> None:
    calls: list[tuple[bytes | None, int]] = []

    def delay(message: Message, attempt: int) -> float:
        calls.append((message.value(), attempt))
        return attempt * 1.5

    assert outcome_of(Behaviour(retry=delay), OSError("x"), delivery_count=3)[:2] == (
        "RELEASE",
        4500,
    )
    assert calls == [(b"0", 3)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, ("RELEASE", 0, "OSError: x")),
        (0, ("RELEASE", 1, "OSError: x")),
        (Reject, ("REJECT", 0, "OSError: x")),
        (Reject("too often"), ("REJECT", 0, "too often")),
    ],
)
def test_a_function_may_leave_it_to_the_group_or_reject(
    answer: Any, expected: tuple[str, int, str]
) -> None:
    assert outcome_of(Behaviour(retry=lambda message, attempt: answer), OSError("x")) == expected


def test_what_the_handler_raised_and_what_the_map_says_win_over_retry() -> None:
    behaviour = Behaviour(retry=Backoff(60, jitter=0), on_error={OSError: Retry(2)})
    assert outcome_of(behaviour, Retry(1))[:2] == ("RELEASE", 1000)
    assert outcome_of(behaviour, Reject("no"))[0] == "REJECT"
    assert outcome_of(behaviour, OSError())[:2] == ("RELEASE", 2000)
    assert outcome_of(behaviour, KeyError())[:2] == ("RELEASE", 60_000)


@pytest.mark.parametrize("answer", [-1, float("nan"), "5", True, Retry(1)])
def test_a_function_that_returns_nonsense_is_named_and_the_record_released(answer: Any) -> None:
    world = failing_world(Behaviour(retry=lambda message, attempt: answer))
    parts = world.start()
    world.notices()
    world.core.settle(parts, OSError("x"))
    world.publish()
    assert world.acks() == [Ack("t", 0, 0, 0, "RELEASE", 1, 0, "OSError: x")]
    about, failed = world.notices()
    assert "retry of handler handle failed, the record is released: " in about
    assert "it must return" in about
    assert "OSError: x" in failed


def test_a_function_that_raises_is_named_and_the_record_released() -> None:
    def delay(message: Message, attempt: int) -> float:
        raise ZeroDivisionError("rule")

    world = failing_world(Behaviour(retry=delay))
    world.core.settle(world.start(), OSError("x"))
    world.publish()
    assert world.acks() == [Ack("t", 0, 0, 0, "RELEASE", 1, 0, "OSError: x")]
    assert any("ZeroDivisionError: rule" in text for text in world.notices())


@pytest.mark.parametrize("retry", [5, Backoff, "often"])
def test_a_retry_that_is_no_rule_is_refused(retry: Any) -> None:
    with pytest.raises(TypeError, match="retry must be Backoff"):
        Behaviour(retry=retry)


def test_a_retry_that_has_to_be_awaited_is_refused() -> None:
    async def delay(message: Message, attempt: int) -> float:
        return 1.0

    with pytest.raises(TypeError, match="plain function"):
        Behaviour(retry=delay)  # type: ignore[arg-type]


# -- batches ----------------------------------------------------------------------------------


def batch_world(result: object, **settings: Any) -> WorkerWorld:
    """A handler of four messages that returned something."""
    world = failing_world(settings.pop("behaviour", Behaviour()), count=4, batch=4, **settings)
    parts = world.start_batch()
    world.notices()
    world.core.finish(parts, result, world.now)
    world.publish()
    return world


@pytest.mark.parametrize(
    "result",
    [
        [None, Retry(2), None, Reject("bad")],
        (None, Retry(2), None, Reject("bad")),
        BatchOutcome({3: Reject("bad"), 1: Retry(2)}),
    ],
)
def test_each_record_of_a_batch_has_its_outcome(result: object) -> None:
    world = batch_world(result)
    assert world.acks() == [
        Ack("t", 0, 0, 0, "ACCEPT", 1),
        Ack("t", 0, 1, 1, "RELEASE", 1, 2000),
        Ack("t", 0, 2, 2, "ACCEPT", 1),
        Ack("t", 0, 3, 3, "REJECT", 1, 0, "bad"),
    ]
    assert (world.locks.jobs, world.locks.running, world.locks.leases) == (0, 0, {})


def test_an_exception_in_the_list_is_as_if_it_had_been_raised_for_its_record() -> None:
    behaviour = Behaviour(on_error={ValueError: Reject}, retry=Backoff(2, jitter=0))
    world = batch_world([None, ValueError("v"), OSError("o"), Retry], behaviour=behaviour)
    assert [(a.first, a.kind, a.delay_ms) for a in world.acks()] == [
        (0, "ACCEPT", 0),
        (1, "REJECT", 0),
        (2, "RELEASE", 2000),
        (3, "RELEASE", 0),
    ]
    assert [text for text in world.notices() if "offset 2 failed" in text]


def test_none_accepts_a_batch_and_its_retry_looks_at_each_record_when_it_raises() -> None:
    assert batch_world(None).acks() == [Ack("t", 0, 0, 3, "ACCEPT", 1)]
    rule = Behaviour(retry=lambda message, attempt: float(message.value()))
    world = failing_world(rule, count=3, batch=3)
    world.core.settle(world.start_batch(), OSError("x"))
    world.publish()
    assert [ack.delay_ms for ack in world.acks()] == [1, 1000, 2000]


async def _never_awaited() -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (5, "must return None, a list of outcomes or BatchOutcome"),
        ([None], "1 outcomes for 4 messages"),
        ([None] * 5, "5 outcomes for 4 messages"),
        ([None, None, None, "bad"], "'bad' is no outcome"),
        (BatchOutcome({4: Retry}), "place 4 of 4 messages"),
        (_never_awaited(), "that nobody runs"),
        ((each for each in ()), "that nobody runs"),
    ],
)
def test_nonsense_releases_the_batch_and_names_the_handler(result: object, message: str) -> None:
    world = batch_world(result)
    (ack,) = world.acks()
    assert (ack.first, ack.last, ack.kind) == (0, 3, "RELEASE")
    assert message in ack.reason
    (text,) = world.notices()
    assert text.startswith("handler handle of t [0] offsets 0..3 failed, the record is released")


def test_a_batch_outcome_has_places_and_outcomes() -> None:
    for bad in ([Retry], {"1": Retry}, {True: Retry}, {0: "bad"}, {0: 5}):
        with pytest.raises(TypeError):
            BatchOutcome(bad)  # type: ignore[arg-type]


# -- what a handler of single records returns -------------------------------------------------


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (None, "ACCEPT"),
        ("a result", "ACCEPT"),
        (Retry(1), "RELEASE"),
        (Reject("bad"), "REJECT"),
        (Reject, "REJECT"),
        (ValueError("v"), "RELEASE"),
        ((each for each in ()), "RELEASE"),
    ],
)
def test_an_outcome_that_is_returned_counts_and_what_has_not_run_is_released(
    result: object, kind: str
) -> None:
    world = failing_world(Behaviour())
    world.core.finish(world.start(), result, world.now)
    world.publish()
    assert [ack.kind for ack in world.acks()] == [kind]


# -- what is logged of failures ---------------------------------------------------------------


def test_a_flood_of_failures_is_a_few_tracebacks_and_a_bounded_number_of_lines() -> None:
    world = WorkerWorld(concurrency=1000)
    world.join()
    world.receive(make_batch([b"x"] * 250))
    for part in world.start():
        world.core.settle([part], RuntimeError("poison"), world.now)
    notices = take_notices(world.core)
    failed = [each for each in notices if "failed" in each.text]
    assert [each.level for each in failed] == [logging.ERROR] * LINES_MAX
    assert [each.raised is not None for each in failed] == [True] * TRACES_MAX + [False] * (
        LINES_MAX - TRACES_MAX
    )
    assert failed[-1].text.endswith("(what follows within 60 s is counted, not logged)")
    world.pass_time(WINDOW_S)
    assert "handler handle failed 150 more times that were not logged" in world.notices()
    world.receive(make_batch([b"x"], base=250, token=2))
    (part,) = world.start()
    world.core.settle([part], RuntimeError("poison"), world.now)
    (again,) = [each for each in take_notices(world.core) if "failed" in each.text]
    assert again.raised is not None, "a new window"


def test_what_a_retry_rule_raises_has_its_traceback_in_the_log() -> None:
    def rule(_: Message, __: int) -> float:
        raise ZeroDivisionError

    world = WorkerWorld(behaviour=Behaviour(retry=rule))
    world.join()
    world.receive(make_batch([b"x"]))
    (part,) = world.start()
    world.core.settle([part], RuntimeError("bug"), world.now)
    raised = [type(each.raised) for each in take_notices(world.core) if each.raised is not None]
    assert raised == [ZeroDivisionError, RuntimeError]
