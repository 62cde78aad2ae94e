"""The jobs of the processes of a trial, a JSON file each; and the head of every payload."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Cell, Compression, TopicKey, cell_from_json

HEAD: Final = struct.Struct("<qq")
"""Begin of every payload: intended send time in ns of the monotonic clock, number."""
NO_NUMBER: Final = -1
"""Number of records that only wake a group up."""


@dataclass(frozen=True, slots=True)
class LoadJob:
    """The consumers of a trial, or the part of them that one process has.

    Attributes:
        bootstrap_servers: Address of the broker, or of the coordinator.
        group: A fresh group, or the begin of the names of groups.
        topic: The topic to consume, or the begin of the names of topics.
        seed: Of the work times.
        per_record: Whether every record is looked at on its own (work, latency, drain).
        latency: Whether payloads carry their intended send time.
        own_groups: Whether each consumer has a group of its own, named `<group>-<number>`.
        own_topics: Whether each consumer has a topic of its own, named `<topic>-<number>`.
        board_records: Records that the board tells apart; 0 for none.
        board: File of the board; this and all that follows is set for each process by `Fleet`.
    """

    cell: Cell
    bootstrap_servers: str
    group: str
    topic: str
    seed: int = 1
    per_record: bool = False
    latency: bool = False
    own_groups: bool = False
    own_topics: bool = False
    board_records: int = 0
    board: str = ""
    samples: str = ""
    process: int = 0
    processes: int = 1
    first_consumer: int = 0
    consumers: int = 0

    def group_of(self, consumer: int) -> str:
        """The group of a consumer."""
        return f"{self.group}-{consumer}" if self.own_groups else self.group

    def topic_of(self, consumer: int) -> str:
        """The topic of a consumer."""
        return f"{self.topic}-{consumer}" if self.own_topics else self.topic

    def write(self, path: Path) -> None:
        """Writes the file that `read` reads."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> LoadJob:
        """Reads the file that `write` wrote."""
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
    """The job of the process that produces at a steady rate (records per second).

    `start_ns` is when the first record is due on the monotonic clock; `outcome` is a JSON file.
    """

    bootstrap_servers: str
    topic: str
    key: TopicKey
    seed: int
    rate: float
    start_ns: int
    records: int
    outcome: str

    def write(self, path: Path) -> None:
        """Writes the file that `read` reads."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> SendJob:
        """Reads the file that `write` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        key = {**values["key"], "compression": Compression(values["key"]["compression"])}
        return cls(**{**values, "key": TopicKey(**key)})
