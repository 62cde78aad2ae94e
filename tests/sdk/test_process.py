"""What a process sees of the SDK: import, fork, signals, garbage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import sharecoord_sdk
from sharecoord_sdk import ShareConsumer

from tests.sdk.driver import Drivers, joined
from tests.sdk.fake_coordinator import FakeCoordinator, make_batch

PUBLIC_NAMES = [
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AcknowledgeType",
    "AdminClient",
    "AsyncAdminClient",
    "AsyncShareConsumer",
    "Backoff",
    "BatchOutcome",
    "Breaker",
    "ConcurrentModificationException",
    "DeserializingShareConsumer",
    "IllegalStateException",
    "KafkaError",
    "KafkaException",
    "Message",
    "MessageField",
    "Messages",
    "Outcome",
    "Reject",
    "Retry",
    "SerializationContext",
    "ShareConsumer",
    "ThrottleEvent",
    "TopicPartition",
    "Worker",
    "WorkerState",
    "__version__",
]


def test_the_public_names_are_these() -> None:
    assert sharecoord_sdk.__all__ == PUBLIC_NAMES
    assert all(hasattr(sharecoord_sdk, name) for name in PUBLIC_NAMES)


def run(code: str, *arguments: str) -> str:
    """Runs a program in a fresh interpreter and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_and_constructor_start_nothing() -> None:
    printed = run(
        """
        import os, sys, threading
        os.environ.pop("GRPC_ENABLE_FORK_SUPPORT", None)
        import sharecoord_sdk
        consumers = [
            kind({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
            for kind in (sharecoord_sdk.ShareConsumer, sharecoord_sdk.AsyncShareConsumer)
        ]
        foreign = {"sharecoord", "confluent_kafka", "pytest"} & {
            name.partition(".")[0] for name in sys.modules
        }
        print(threading.active_count(), os.environ["GRPC_ENABLE_FORK_SUPPORT"], sorted(foreign))
        consumers[0].close()
        """
    )
    assert printed == "1 true []"


def test_a_forked_child_is_refused_and_the_parent_goes_on(coordinator: FakeCoordinator) -> None:
    answers = threading.Thread(
        target=lambda: coordinator.stream().send(make_batch([b"a"])), daemon=True
    )
    answers.start()
    printed = run(
        """
        import os, sys
        from sharecoord_sdk import IllegalStateException, ShareConsumer
        config = {"bootstrap.servers": sys.argv[1], "group.id": "g"}
        consumer = ShareConsumer({**config, "share.acknowledgement.mode": "explicit"})
        consumer.subscribe(["t"])
        (message,) = consumer.poll(10)
        child = os.fork()
        if child == 0:
            refused = 0
            for call in (
                lambda: consumer.poll(0),
                lambda: consumer.acknowledge(message),
                lambda: consumer.acknowledge_offset("t", 0, 0),
                lambda: consumer.commit_async(),
            ):
                try:
                    call()
                except IllegalStateException as error:
                    refused += "fork" in str(error)
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        consumer.acknowledge(message)
        results = list(consumer.commit_sync(10).values())
        consumer.close()
        print(os.waitstatus_to_exitcode(status), results)
        """,
        coordinator.address,
    )
    answers.join(10)
    assert printed == "4 [None]"
    assert coordinator.streams_seen[0].requests[-1].leave


def test_a_signal_ends_a_poll_and_loses_nothing(coordinator: FakeCoordinator) -> None:
    drivers = Drivers("sync")
    consumer, stream = joined(drivers, coordinator)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll()
    finally:
        signal.signal(signal.SIGALRM, before)
    stream.send(make_batch([b"a"]))
    assert len(consumer.poll(10)) == 1
    drivers.finish()


def test_no_thread_is_left_after_close(coordinator: FakeCoordinator) -> None:
    def readers() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("sharecoord-reader")]

    drivers = Drivers("sync")
    consumer, _ = joined(drivers, coordinator)
    assert len(readers()) == 1
    drivers.finish()
    assert readers() == []
    consumer.close()


def test_a_consumer_can_be_made_anew_after_close_only(coordinator: FakeCoordinator) -> None:
    config = {"bootstrap.servers": coordinator.address, "group.id": "g"}
    consumer = ShareConsumer(config)
    with pytest.raises(RuntimeError, match="already initialized"):
        consumer.__init__(config)  # type: ignore[misc]
    consumer.close()
    consumer.__init__(config)  # type: ignore[misc]
    assert consumer.subscription() == []
    consumer.close()
    assert os.getpid() > 0
