"""A low limit of open files: who is served goes on, who is refused hears why, probes are true."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sharecoord_sdk import KafkaError, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest, eventually, unique_name

RUN = "import sys; from sharecoord.cli.main import main; sys.exit(main())"
DEADLINE_S = 60.0
LIMIT, GROUPS = 140, 20
"""Of files, and more groups on one partition than fit into them."""
RECORDS = 20


@contextmanager
def limited(
    kafka: KafkaUnderTest, directory: Path, command: str
) -> Iterator[tuple[CoordinatorProcess, int]]:
    """A coordinator under a shell's `ulimit`, and its management port."""
    (port,) = free_ports(1)
    shell = ["sh", "-c", f'{command}; exec "$0" "$@"', sys.executable, "-c", RUN, "serve"]
    process = CoordinatorProcess(
        kafka.bootstrap_servers, directory, settings={"management.port": port}, program=shell
    )
    with process:
        yield process, port


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_groups_that_do_not_fit_are_refused_and_the_others_served(
    kafka_broker: KafkaUnderTest, tmp_path: Path
) -> None:
    topic, topics = unique_name("t"), Topics(kafka_broker.bootstrap_servers)
    topics.create(topic)
    topics.produce(topic, RECORDS)
    with (
        limited(kafka_broker, tmp_path, f"ulimit -n {LIMIT}") as (coordinator, port),
        ExitStack() as stack,
    ):
        heard: list[list[KafkaError]] = [[] for _ in range(GROUPS)]
        got = [0] * GROUPS
        consumers: list[ShareConsumer] = []
        for errors in heard:
            conf = {
                "bootstrap.servers": coordinator.address,
                "group.id": unique_name("g"),
                "error_cb": errors.append,
                "socket.connection.setup.timeout.ms": 1_000,
            }
            consumers.append(stack.enter_context(ShareConsumer(conf)))
            consumers[-1].subscribe([topic])

        def each_is_served_or_told() -> bool:
            for number, consumer in enumerate(consumers):
                got[number] += len(consumer.poll(0.01))
            return all(got[n] >= RECORDS or heard[n] for n in range(GROUPS))

        eventually(each_is_served_or_told, DEADLINE_S, f"all are served or told: {got}")
        refused = [number for number in range(GROUPS) if got[number] < RECORDS]
        assert 5 <= len(refused) <= GROUPS - 5
        for number in refused:
            assert heard[number][0].retriable()
            assert "LIMIT_EXCEEDED" in heard[number][0].str()
            assert f"of {LIMIT}" in heard[number][0].str()
        assert page(port, "/healthz/ready") == "ok\n"
        topics.produce(topic, RECORDS)
        served = [number for number in range(GROUPS) if number not in refused]

        def more_came() -> bool:
            for number, consumer in enumerate(consumers):
                got[number] += len(consumer.poll(0.01))
            return all(got[number] >= 2 * RECORDS for number in served)

        eventually(more_came, DEADLINE_S, f"who is served goes on: {got}")
        assert page(port, "/healthz/ready") == "ok\n"
        assert "few open files" in coordinator.log_tail()
    topics.delete(topic)


def test_the_soft_limit_is_raised_to_the_hard_one(
    kafka_broker: KafkaUnderTest, tmp_path: Path
) -> None:
    with limited(kafka_broker, tmp_path, "ulimit -Sn 64; ulimit -Hn 5000") as (_, port):
        text = page(port, "/metrics")
    assert re.search(r"^process_max_fds 5000\.0$", text, re.M)
    found = re.search(r"^process_open_fds (\S+)$", text, re.M)
    assert found is not None
    assert float(found[1]) > 5
