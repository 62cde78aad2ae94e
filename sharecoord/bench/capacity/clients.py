"""Many light consumers in one process: `python -m sharecoord.bench.capacity.clients JOB`.

They take what comes and count it on a board; they run until the process is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sharecoord_sdk import AsyncShareConsumer

from sharecoord.bench.errors import BenchError
from sharecoord.bench.grid.board import Board
from sharecoord.devenv.processes import GuardedProcess

_POLL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ClientJob:
    """What the process is told.

    Attributes:
        address: Of the coordinator.
        topic: What to consume, or the begin of the names of topics.
        group: The group, or the begin of the names of groups.
        own_groups: Whether each consumer has a group of its own.
        own_topics: Whether each consumer has a topic of its own.
        clients: How many consumers.
        board: File of the board.
        work_ms: How long each consumer takes for a record, one after the other.
    """

    address: str
    topic: str
    group: str
    own_groups: bool
    own_topics: bool
    clients: int
    board: str
    work_ms: float = 0.0

    def group_of(self, number: int) -> str:
        """The group of a consumer."""
        return f"{self.group}-{number}" if self.own_groups else self.group

    def topic_of(self, number: int) -> str:
        """The topic of a consumer."""
        return f"{self.topic}-{number}" if self.own_topics else self.topic


class Clients:
    """The process, seen from outside."""

    def __init__(self, process: GuardedProcess, board: Board) -> None:
        self._process = process
        self._board = board
        self.began_s = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def records(self) -> int:
        """Records that all of them were given so far."""
        return self._board.total

    def check(self) -> None:
        """BenchError when the process has ended."""
        if not self._process.alive:
            raise BenchError(f"the consumers ended: {self._process.log_tail(20)}")


@contextmanager
def running_clients(
    directory: Path,
    *,
    address: str,
    topic: str,
    clients: int,
    group: str = "capacity",
    own_groups: bool = False,
    own_topics: bool = False,
    work_ms: float = 0.0,
) -> Iterator[Clients]:
    """Starts the process; ends it and all its consumers afterwards, as a crash would.

    Args:
        directory: An existing directory for its files.
        address: As the other arguments, see `ClientJob`.
        topic: What to consume, or the begin of the names of topics.
        clients: How many consumers.
        group: The group, or the begin of the names of groups.
        own_groups: Whether each consumer has a group of its own.
        own_topics: Whether each consumer has a topic of its own.
        work_ms: How long each consumer takes for a record.
    """
    board_file, job_file = directory / "board", directory / "clients.job"
    board = Board.create(board_file, consumers=clients, processes=1, records=0)
    job = ClientJob(
        address, topic, group, own_groups, own_topics, clients, str(board_file), work_ms
    )
    job_file.write_text(json.dumps(asdict(job)), encoding="utf-8")
    argv = [sys.executable, "-m", "sharecoord.bench.capacity.clients", str(job_file)]
    process = GuardedProcess("clients", argv, log_path=directory / "clients.log")
    try:
        process.start()
        yield Clients(process, board)
    finally:
        process.kill()
        board.close()


async def _consume(job: ClientJob, board: Board, number: int) -> None:
    config = {"bootstrap.servers": job.address, "group.id": job.group_of(number)}
    records = 0
    async with AsyncShareConsumer(config) as consumer:
        await consumer.subscribe([job.topic_of(number)])
        while True:
            for message in await consumer.poll(_POLL_S):
                if message.error() is not None:
                    raise BenchError(f"a consumer was given an error: {message.error()}")
                if job.work_ms:
                    await asyncio.sleep(job.work_ms / 1000)
                records += 1
                board.set_count(number, records)


async def _run(job: ClientJob) -> None:
    board = Board(Path(job.board), consumers=job.clients, processes=1, records=0)
    async with asyncio.TaskGroup() as tasks:
        for number in range(job.clients):
            tasks.create_task(_consume(job, board, number))


def main(path: Path) -> None:
    """Runs a job until the process is ended."""
    asyncio.run(_run(ClientJob(**json.loads(path.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
