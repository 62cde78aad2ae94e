"""The Kafka under the benchmark: a cluster that the user names, or a broker of the run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.maven import DEFAULT_VERSION

BROKER_HEAP_MB: Final = 1024
"""The heap of a small production broker; the 512 MB of tests would slow the peer down."""


def say(line: str) -> None:
    """Writes progress to standard error, apart from the report on standard output."""
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The Kafka under the benchmark.

    Attributes:
        bootstrap_servers: `host:port`, several with commas between them.
        pid: Process of the broker, whose CPU time is read; None for a cluster that the user named.
        version: Version of the broker, or the address that the user named.
    """

    bootstrap_servers: str
    pid: int | None
    version: str


def open_cluster(
    stack: ExitStack,
    kafka: str | None,
    *,
    say: Callable[[str], None],
    settings: Mapping[str, str] | None = None,
) -> Cluster:
    """A named cluster, or a new broker that ends with the stack.

    Args:
        stack: Ends the broker.
        kafka: Address of a cluster; None starts a broker.
        say: Is told that a broker starts.
        settings: Settings of the new broker.

    Raises:
        DevenvError: The broker can not be started; says what is missing.
    """
    if kafka is not None:
        return Cluster(kafka, None, kafka)
    say("starting a broker")
    broker = KafkaBroker(DEFAULT_VERSION, heap_mb=BROKER_HEAP_MB, settings=dict(settings or {}))
    stack.enter_context(broker)
    return Cluster(broker.bootstrap_servers, broker.pid, broker.version)
