"""A handler calls `sys.exit`: its record and all that waited are another member's at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from sharecoord_sdk import AdminClient, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.support import eventually, unique_name

RECORDS, HIT = 20, 7
LOCK_S = 60
# Far from the end of any lock.
AT_ONCE_S = 20.0
APP = """
import sys
from sharecoord_sdk import Worker

worker = Worker({"bootstrap.servers": "ADDRESS", "group.id": "GROUP"}, concurrency=1)

@worker.handler("TOPIC")
KIND handle(message):
    if message.offset() == HIT:
        sys.exit(42)

worker.run()
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_another_member_has_its_record_at_once_and_no_result_is_lost(
    kind: str, topic: Callable[..., str], topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, RECORDS)
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, {"share.record.lock.duration.ms": LOCK_S * 1000})
        app = APP
        for word, text in {
            "ADDRESS": coordinator.address,
            "GROUP": group,
            "TOPIC": name,
            "KIND": kind,
            "HIT": str(HIT),
        }.items():
            app = app.replace(word, text)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", app],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        ended_s = time.monotonic()
        assert done.returncode == 42, done.stderr
        assert "the record is released: SystemExit: 42" in done.stderr
        counts: dict[int | None, int | None] = {}
        with ShareConsumer({"bootstrap.servers": coordinator.address, "group.id": group}) as other:
            other.subscribe([name])

            def all_came() -> bool:
                for message in other.poll(0.2):
                    counts[message.offset()] = message.delivery_count()
                return len(counts) == RECORDS - HIT

            eventually(all_came, AT_ONCE_S, what="what the worker has not handled")
            assert time.monotonic() - ended_s < LOCK_S / 2
            other.commit_sync(10)
        # What was accepted comes to nobody, what was not seen is not counted.
        assert counts == {HIT: 2} | dict.fromkeys(range(HIT + 1, RECORDS), 1)
        (group_now,) = admin.describe_groups([group], members=False)
        assert [each.start_offset for each in group_now.offsets] == [RECORDS]
