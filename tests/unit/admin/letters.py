"""Groups whose dead letters go to the topic `dead`, which can be read."""

from __future__ import annotations

import asyncio

from sharecoord.core.states import AcknowledgeType
from sharecoord.ports import OutgoingMessage
from sharecoord.testing.harness import FakeMember
from tests.unit.admin.support import Bench

NAME = "errors.deadletterqueue.topic.name"
REJECT = AcknowledgeType.REJECT


def deliver(bench: Bench, *, partitions: int = 1) -> None:
    """The dead-letter topic: what arrives in it is in the log."""
    bench.log.create("dead", partitions)
    bench.world.dead_letters.topics["dead"] = []
    bench.world.dead_letters.on_arrival = lambda message: put(bench, message)


def put(bench: Bench, message: OutgoingMessage, partition: int = 0) -> None:
    headers = list(message.headers)
    bench.log.append("dead", key=message.key, headers=headers, partition=partition)
    bench.log.log("dead", partition).records[-1].value = message.value


async def with_letters(bench: Bench, group: str = "g", **settings: str) -> FakeMember:
    """A member of a group whose dead letters go to the topic `dead`."""
    if bench.log.find("dead", 0) is None:
        deliver(bench)
    more = {f"errors.deadletterqueue.{name.replace('_', '.')}": v for name, v in settings.items()}
    await bench.admin.alter_group_configs(group, {NAME: "dead", **more}, [])
    return await bench.member(f"m-{group}", group)


async def reject(member: FakeMember, *offsets: int) -> None:
    """Rejects these of the first hundred; the others are accepted."""
    for delivery in await member.take(100):
        for offset in offsets:
            if delivery.ranges[0].first <= offset <= delivery.ranges[-1].last:
                await member.acknowledge(delivery, REJECT, first=offset, last=offset)
        await member.acknowledge(delivery)
    await asyncio.sleep(1)
