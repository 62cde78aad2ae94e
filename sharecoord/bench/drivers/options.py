"""The command line that all drivers share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A share group hands out whole batches of the producer, of up to 10,000 records: so many that the
# clock starts and ends within the topic.
MIN_RECORDS = 50_000


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """What to consume and what to watch meanwhile.

    Attributes:
        bootstrap_servers: Address of the broker, or of the coordinator.
        group: A fresh group.
        topic: A topic with one partition.
        records: How many records the topic holds.
        explicit: Whether every record is acknowledged by a call of its own.
        watched: Process ids by name, whose CPU time is read when the clock starts and ends.
        deadline_s: How long the whole run may take.
    """

    bootstrap_servers: str
    group: str
    topic: str
    records: int
    explicit: bool
    watched: Mapping[str, int]
    deadline_s: float

    def argv(self) -> list[str]:
        """The same as a command line; `parse_options` reads it back."""
        argv = ["--bootstrap-servers", self.bootstrap_servers, "--group", self.group]
        argv += ["--topic", self.topic, "--records", str(self.records)]
        argv += ["--deadline-s", str(self.deadline_s)]
        if self.explicit:
            argv.append("--explicit")
        for name, pid in self.watched.items():
            argv += ["--watch", f"{name}={pid}"]
        return argv


def parse_options(argv: Sequence[str] | None = None) -> DriverOptions:
    """Reads a driver's command line; ends the process with a message when it is malformed."""
    parser = argparse.ArgumentParser(description="Consumes a topic once, prints one JSON line.")
    parser.add_argument("--bootstrap-servers", required=True, help="HOST:PORT")
    parser.add_argument("--group", required=True, help="a fresh group")
    parser.add_argument("--topic", required=True, help="a topic with one partition")
    parser.add_argument("--records", required=True, type=_count, help="records in the topic")
    parser.add_argument("--explicit", action="store_true", help="acknowledge every record")
    parser.add_argument("--watch", action="append", default=[], type=_watched, help="NAME=PID")
    parser.add_argument("--deadline-s", type=float, default=300.0, help="limit of the run")
    given = parser.parse_args(argv)
    return DriverOptions(
        bootstrap_servers=given.bootstrap_servers,
        group=given.group,
        topic=given.topic,
        records=given.records,
        explicit=given.explicit,
        watched=dict(given.watch),
        deadline_s=given.deadline_s,
    )


def _count(text: str) -> int:
    count = int(text)
    if count < MIN_RECORDS:
        raise argparse.ArgumentTypeError(f"{count} records are too few, use {MIN_RECORDS} or more")
    return count


def _watched(text: str) -> tuple[str, int]:
    name, equals, pid = text.partition("=")
    if not (name and equals and pid.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PID")
    return name, int(pid)
