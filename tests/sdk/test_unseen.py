"""The timer that hands back what a blocking program does not poll for."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from sharecoord_sdk._sync import timers, unseen

from tests.support import eventually


class FakeConsumer:
    """Counts how often it is to hand back."""

    def __init__(self) -> None:
        self.count = 0

    def _hand_back_unseen(self) -> None:
        self.count += 1


def inbox_of(consumer: Any) -> unseen.Inbox:
    return unseen.Inbox(consumer)


def test_a_time_that_is_over_is_now_and_leaves_nothing() -> None:
    consumer = FakeConsumer()
    inbox = inbox_of(consumer)
    for count in range(1, 20):
        inbox.schedule(0.0)
        eventually(lambda count=count: consumer.count == count, 10.0, "the hand-back")
    eventually(lambda: inbox._timer not in timers._TIMERS, 10.0, "no timer is left")
    assert inbox._timer is None


def test_one_is_scheduled_at_a_time_and_a_forgotten_one_never_comes() -> None:
    consumer = FakeConsumer()
    inbox = inbox_of(consumer)
    inbox.schedule(math.inf)
    assert inbox._timer is None
    inbox.schedule(time.monotonic() + 3600)
    timer = inbox._timer
    inbox.schedule(0.0)
    assert inbox._timer is timer in timers._TIMERS
    inbox.forget()
    assert timer is not None
    assert not timer.is_alive()
    assert timer not in timers._TIMERS
    assert consumer.count == 0


def test_a_consumer_that_is_gone_takes_its_timer_along() -> None:
    inbox = inbox_of(FakeConsumer())
    inbox.schedule(time.monotonic() + 3600)
    timer = inbox._timer
    assert timer is not None
    del inbox
    assert timer not in timers._TIMERS
    eventually(lambda: not timer.is_alive(), 10.0, "the timer has ended")


def test_a_thread_that_can_not_start_leaves_the_next_time_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = FakeConsumer()
    inbox = inbox_of(consumer)

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(unseen.Timer, "start", refuse)
        with pytest.raises(RuntimeError, match="thread"):
            inbox.schedule(0.0)
    inbox.schedule(0.0)
    eventually(lambda: consumer.count == 1, 10.0, "the hand-back")
