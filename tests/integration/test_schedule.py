"""Records that are to be delivered later, from a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable

from sharecoord_sdk import ShareConsumer

from sharecoord.core.dispatch.schedule import DELAY_HEADER, DELIVER_AT_HEADER
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.support import eventually, unique_name

LATE_S = 10.0
"""Beyond the promise: machines of tests are slow."""


def test_records_wait_for_their_time_and_others_pass(
    topic: Callable[..., str], topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name, begun = topic(), time.time()
    due = {b"at": begun + 4, b"after": begun + 2, b"now": begun, b"bad": begun}
    at_ms = str(round(due[b"at"] * 1000)).encode()
    topics.produce(
        name,
        [
            (None, b"at", [(DELIVER_AT_HEADER, at_ms), ("trace", None)]),
            (None, b"after", [(DELAY_HEADER, b"2000")]),
            (None, b"bad", [(DELIVER_AT_HEADER, b"tomorrow")]),
            (None, b"now", None),
        ],
    )
    config = {"bootstrap.servers": coordinator.address, "group.id": unique_name("g")}
    came: dict[bytes | None, float] = {}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([name])

        def all_came() -> bool:
            for message in consumer.poll(0.2):
                assert message.delivery_count() == 1
                came[message.value()] = time.time()
            return len(came) == len(due)

        eventually(all_came, 30, what="all records")
    # The clocks are one; a moment may be rounded.
    early = {value: due[value] - at for value, at in came.items() if at < due[value] - 0.002}
    assert not early
    late = {value: at - due[value] for value, at in came.items() if at > due[value] + LATE_S}
    assert not late
    assert list(came)[2:] == [b"after", b"at"]
    log = coordinator.log_tail()
    assert "schedule not used" in log
    assert "tomorrow" in log
