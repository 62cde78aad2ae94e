"""The load processes of one trial."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from sharecoord.bench.engine import parallel_consumer
from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Consumer
from sharecoord.bench.engine.job import LoadJob, SendJob
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import cpu_s
from sharecoord.devenv.processes import GuardedProcess

LOOK_S: Final = 0.01
READY_S: Final = 120.0
"""Longest time to make and subscribe all consumers."""
END_S: Final = 75.0
"""Longest time to close all consumers."""
_LOAD: Final = "sharecoord.bench.engine.load"
_SEND: Final = "sharecoord.bench.engine.send"


class Fleet:
    """Processes with consumers, and the board that they share. Ends them on exit."""

    def __init__(self, job: LoadJob, directory: Path, per_process: int) -> None:
        consumers = job.cell.consumers
        processes = math.ceil(consumers / per_process)
        board = directory / "board"
        self.board = Board.create(
            board, consumers=consumers, processes=processes, records=job.board_records
        )
        self._processes: list[GuardedProcess] = []
        self._samples: list[Path] = []
        for process in range(processes):
            first = process * per_process
            samples, job_file = directory / f"{process}.samples", directory / f"{process}.job"
            own = replace(
                job,
                board=str(board),
                samples=str(samples),
                process=process,
                processes=processes,
                first_consumer=first,
                consumers=min(per_process, consumers - first),
            )
            own.write(job_file)
            self._samples.append(samples)
            self._processes.append(_load_process(f"load-{process}", own, job_file))

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        self.board.close()

    def wait_ready(self) -> None:
        """Waits until all consumers are subscribed; BenchError when one ended or is late."""
        deadline = time.monotonic() + READY_S
        while not self.board.all_ready:
            self.check()
            if time.monotonic() > deadline:
                raise BenchError(f"the consumers were not ready within {READY_S:.0f} s")
            time.sleep(LOOK_S)

    def check(self) -> None:
        """BenchError when a process has ended."""
        for process in self._processes:
            if not process.alive:
                raise BenchError(f"a load process ended: {process.log_tail(20)}")

    def cpu_s(self) -> float:
        """CPU seconds of all processes so far."""
        return sum(cpu_s(process.pid) for process in self._processes)

    def finish(self) -> Samples:
        """Stops all consumers and waits for the processes' end; BenchError when one failed."""
        self.board.stop()
        deadline = time.monotonic() + END_S
        merged = Samples()
        for process, path in zip(self._processes, self._samples, strict=True):
            await_end(process, deadline)
            merged.extend(Samples.read(path))
        return merged


class SendProcess:
    """The process that produces at a steady rate."""

    def __init__(self, job: SendJob, directory: Path) -> None:
        """Writes the job; nothing is started."""
        job_file = directory / "send.job"
        job.write(job_file)
        self._outcome = Path(job.outcome)
        self._process = _process("send", _SEND, job_file)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def late_ms(self, deadline: float) -> float:
        """Waits for the end; the longest delay of the producer. BenchError when it failed."""
        await_end(self._process, deadline)
        said: dict[str, float] = json.loads(self._outcome.read_text(encoding="utf-8"))
        return said["late_ms"]


def await_end(process: GuardedProcess, deadline: float) -> None:
    """Waits for a process' end in order; BenchError when it failed or did not end in time."""
    while process.exit_code is None:
        if time.monotonic() > deadline:
            raise BenchError(f"{process.name} did not end in time: {process.log_tail(20)}")
        time.sleep(LOOK_S)
    if process.exit_code != 0:
        raise BenchError(
            f"{process.name} failed with exit code {process.exit_code}: {process.log_tail(20)}"
        )


def _load_process(name: str, job: LoadJob, job_file: Path) -> GuardedProcess:
    if job.cell.consumer is Consumer.PARALLEL_CONSUMER:
        argv = parallel_consumer.command(job, job_file.with_suffix(".times"))
        return GuardedProcess(name, argv, log_path=job_file.with_suffix(".log"))
    return _process(name, _LOAD, job_file)


def _process(name: str, module: str, job: Path) -> GuardedProcess:
    argv = [sys.executable, "-m", module, str(job)]
    return GuardedProcess(name, argv, log_path=job.with_suffix(".log"))
