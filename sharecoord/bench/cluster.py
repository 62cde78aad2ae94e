"""The Kafka under the benchmark, the scratch directory, and words about the progress."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sharecoord.bench.machine import Machine, describe_machine
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.maven import DEFAULT_VERSION

BROKER_HEAP_MB: Final = 1024
"""The heap of a small production broker; the 512 MB of tests would slow the peer down."""


def say(line: str) -> None:
    """Writes progress to standard error, apart from the report on standard output."""
    print(line, file=sys.stderr, flush=True)


def begin(stack: ExitStack, kafka: str | None) -> tuple[Path, Machine]:
    """Makes a scratch directory, which goes with the stack, and describes the machine.

    Called before the broker starts: the load average is to be that of other people's work.
    """
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharecoord-bench-")))
    return scratch, describe_machine(kafka=kafka or DEFAULT_VERSION, store_directory=scratch)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The Kafka under the benchmark.

    `pid` and `log_dir`, the directory of its partitions, are None for a cluster that the user
    named.
    """

    bootstrap_servers: str
    pid: int | None = None
    log_dir: Path | None = None


def open_cluster(
    stack: ExitStack,
    kafka: str | None,
    *,
    say: Callable[[str], None],
    settings: Mapping[str, str] | None = None,
) -> Cluster:
    """The named cluster, or a new broker with these settings, which ends with the stack."""
    if kafka is not None:
        return Cluster(kafka)
    say("starting a broker")
    broker = KafkaBroker(DEFAULT_VERSION, heap_mb=BROKER_HEAP_MB, settings=settings, measured=True)
    stack.enter_context(broker)
    return Cluster(broker.bootstrap_servers, broker.pid, broker.log_dir)
