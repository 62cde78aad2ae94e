"""Whoever fails again and again waits, by address."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.errors import LimitExceededError
from sharecoord.security import slowdown as module
from sharecoord.security.slowdown import (
    ADDRESSES_MAX,
    FORGOTTEN_AFTER_MS,
    WAITING_MAX,
    Slowdown,
    host_of,
)
from tests.unit.security.support import Clock


class Gate:
    """A sleep that ends when the test says so."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.sleeping = 0

    async def sleep(self, _: float) -> None:
        self.sleeping += 1
        await self.open.wait()
        self.sleeping -= 1


async def test_each_further_failure_waits_longer() -> None:
    clock = Clock()
    slowdown = Slowdown(clock, clock.sleep)
    for _ in range(7):
        await slowdown.failed("10.0.0.1:5000")
    assert clock.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    await slowdown.failed("10.0.0.2:5000")
    assert clock.waits[-1] == 0.1


async def test_a_minute_without_failure_forgets() -> None:
    clock = Clock()
    slowdown = Slowdown(clock, clock.sleep)
    await slowdown.failed("10.0.0.1")
    clock.now_ms += FORGOTTEN_AFTER_MS - 101
    await slowdown.failed("10.0.0.1")
    clock.now_ms += FORGOTTEN_AFTER_MS
    await slowdown.failed("10.0.0.1")
    assert clock.waits == [0.1, 0.2, 0.1]


async def test_too_many_that_wait_are_refused_at_once_and_others_are_not() -> None:
    gate = Gate()
    slowdown = Slowdown(Clock(), gate.sleep)
    waiting = [asyncio.create_task(slowdown.failed("10.0.0.1")) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    assert gate.sleeping == WAITING_MAX
    for _ in range(1_000):
        with pytest.raises(LimitExceededError) as refused:
            await slowdown.failed("10.0.0.1")
    assert refused.value.retriable
    assert refused.value.retry_after_ms == 2_000
    other = asyncio.create_task(slowdown.failed("10.0.0.2"))
    await asyncio.sleep(0)
    assert gate.sleeping == WAITING_MAX + 1
    gate.open.set()
    await asyncio.gather(*waiting, other)
    await slowdown.failed("10.0.0.1")


async def test_all_addresses_together_hold_a_bounded_number_of_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAITING_TOTAL_MAX", 3)
    gate = Gate()
    slowdown = Slowdown(Clock(), gate.sleep)
    waiting = [asyncio.create_task(slowdown.failed(f"10.0.0.{i}")) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceededError):
        await slowdown.failed("10.0.0.9")
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    waiting[0] = asyncio.create_task(slowdown.failed("10.0.0.9"))
    await asyncio.sleep(0)
    assert gate.sleeping == 4  # The one that was cancelled did not come to its end.
    gate.open.set()
    await asyncio.gather(*waiting)


async def test_the_oldest_address_is_forgotten_when_there_are_too_many() -> None:
    clock = Clock()

    async def at_once(seconds: float) -> None:
        clock.waits.append(seconds)

    slowdown = Slowdown(clock, at_once)
    hosts = [f"10.0.{i >> 8}.{i & 255}" for i in range(ADDRESSES_MAX + 1)]
    for host in [*hosts[:-1], hosts[0], hosts[-1]]:
        await slowdown.failed(host)
    clock.waits.clear()
    for host in (hosts[0], hosts[-1], hosts[1]):
        await slowdown.failed(host)
    # The first one was seen again before the last one came, so the second one went.
    assert clock.waits == [0.4, 0.2, 0.1]


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.1:5000", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:5000", "fe80::/64"),
        ("[::ffff:10.0.0.1]:5000", "10.0.0.1"),
        ("", ""),
        ("x" * 1_000, "x" * 64),
    ],
)
def test_what_failures_are_counted_by(address: str, host: str) -> None:
    assert host_of(address) == host
