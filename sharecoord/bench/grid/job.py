"""What the processes of a trial are told: a JSON file each; and what a payload begins with."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sharecoord.bench.grid.board import Board
from sharecoord.bench.grid.cell import Cell, cell_from_json

HEAD: Final = struct.Struct("<qq")
"""Begin of every payload: intended send time in ns of the monotonic clock, number."""
NO_NUMBER: Final = -1
"""Of records that only wake a group up."""


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Consumers of one process.

    Attributes:
        cell: What is measured.
        bootstrap_servers: Address of the broker, or of the coordinator.
        group: A fresh group.
        topic: What to consume.
        process: Number of this process.
        processes: How many there are.
        first_consumer: Number of this process' first consumer.
        consumers: How many consumers this process has.
        per_record: Whether every record is looked at on its own (work, latency, drain).
        latency: Whether payloads carry their intended send time.
        board: File of the board.
        board_records: Records that the board tells apart.
        samples: Where the samples go.
        seed: Of the work times.
    """

    cell: Cell
    bootstrap_servers: str
    group: str
    topic: str
    process: int
    processes: int
    first_consumer: int
    consumers: int
    per_record: bool
    latency: bool
    board: str
    board_records: int
    samples: str
    seed: int

    def write(self, path: Path) -> None:
        """Writes the file."""
        values: dict[str, Any] = asdict(self)
        path.write_text(json.dumps(values), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LoadJob:
        """Reads `write`."""
        values = json.loads(path.read_text(encoding="utf-8"))
        values["cell"] = cell_from_json(values["cell"])
        return cls(**values)

    def open_board(self) -> Board:
        """The board of the trial."""
        return Board(
            Path(self.board),
            consumers=self.cell.consumers,
            processes=self.processes,
            records=self.board_records,
        )


@dataclass(frozen=True, slots=True)
class SendJob:
    """What the process that produces at a steady rate is told.

    Attributes:
        bootstrap_servers: Address of the broker.
        topic: An existing topic.
        partitions: How many it has.
        payload_bytes: Length of each value.
        key_skew: Zipf exponent; None for records without keys.
        keys: How many keys there are.
        seed: Of the keys.
        rate: Records per second.
        start_ns: When the first record is due; monotonic clock of this machine.
        records: How many there are.
        outcome: Where the outcome goes, as JSON.
    """

    bootstrap_servers: str
    topic: str
    partitions: int
    payload_bytes: int
    key_skew: float | None
    keys: int
    seed: int
    rate: float
    start_ns: int
    records: int
    outcome: str

    def write(self, path: Path) -> None:
        """Writes the file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> SendJob:
        """Reads `write`."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))
