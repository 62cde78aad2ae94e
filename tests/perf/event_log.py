"""What the event log costs the coordinator, and what its writer takes: a script, not a test.

    python -m tests.perf.event_log [--groups 10] [--rows 500000] [--block-rows 5] [--kafka BROKER]

Blocks are made beforehand, as a coordinator has them: a group's rows of one commit. Prints CPU
microseconds per row on the coordinator's side (`put`, marshal, the pipe) and in the writer, until
the rows are taken over and until they are in Parquet files (or in Kafka), and the writer's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from sharecoord.eventlog.schema import EventBlock
from sharecoord.events.frames import WriterSettings
from sharecoord.events.pipe_sink import PipeSink

ROUND_ROWS = 20_000


def now_us() -> int:
    return time.time_ns() // 1_000


def make_block(number: int, groups: int, rows: int) -> EventBlock:
    """A commit of a share-partition: acknowledgements of some members."""
    common: dict[str, str | int | None] = {
        "kind": "range",
        "time": now_us(),
        "group_id": f"group-{number % groups}",
        "topic": "orders",
        "topic_id": "4f2a9c1be0d84f6e9a7c55d1b2e3f401",
        "partition": number // groups % 12,
        "change_sequence": number // groups // 12,
    }
    first = number * rows * 10
    rows_of_commit = [
        {
            "event": "accepted",
            "state": "acknowledged",
            "first_offset": first + 10 * n,
            "last_offset": first + 10 * n + 9,
            "records": 10,
            "delivery_count": 1,
            "member_id": f"3b9d6c1e-member-{(number + n) % 50:04d}",
            "client_id": "orders-service",
            "held_ms": 40 + n % 20,
            "work_us": 38_000 + (number * 7 + n) % 4_000,
            "lock_left_ms": 29_900,
        }
        for n in range(rows)
    ]
    return EventBlock(
        common, tuple(rows_of_commit[0]), [tuple(row.values()) for row in rows_of_commit]
    )


def cpu_s(pid: int) -> float:
    """User and system time of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, name: str) -> float:
    """VmRSS or VmHWM of another process."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


async def measure(options: argparse.Namespace, directory: str) -> None:
    """One run."""
    settings = WriterSettings(
        kind="kafka" if options.kafka else "parquet",
        target="sharecoord-events-perf" if options.kafka else directory,
        coordinator_id="perf",
        file_max_bytes=128 << 20,
        file_max_age_ms=options.age_ms,
        kafka={"bootstrap.servers": options.kafka} if options.kafka else {},
    )
    sink = PipeSink(settings, pipe_max_bytes=64 << 20, now_us=now_us)
    await sink.start()
    pid = sink.writer_pid
    assert pid is not None
    print(f"writer at its start: {memory_mb(pid, 'VmRSS'):.0f} MB")
    base_s = cpu_s(pid)
    put, ours_s = await put_all(sink, options)
    writer_s = cpu_s(pid) - base_s
    print(f"{put} rows, blocks of {options.block_rows}, {options.groups} groups")
    print(f"coordinator: {ours_s / put * 1e6:.2f} us CPU a row")
    print(f"writer until it has taken the rows over: {writer_s / put * 1e6:.2f} us CPU a row")
    if not options.kafka:
        report_files(directory, pid, put)
        print(f"writer in all: {(cpu_s(pid) - base_s) / put * 1e6:.2f} us CPU a row")
    peak, last = memory_mb(pid, "VmHWM"), memory_mb(pid, "VmRSS")
    print(f"writer's memory: at most {peak:.0f} MB, {last:.0f} MB at the end")
    await sink.close()
    print(sink.figures)


async def put_all(sink: PipeSink, options: argparse.Namespace) -> tuple[int, float]:
    """Puts rows as fast as they go without loss; returns how many, and our CPU seconds."""
    put, number, ours_s = 0, 0, 0.0
    count = ROUND_ROWS // options.block_rows
    while put < options.rows:
        blocks = [
            make_block(n, options.groups, options.block_rows) for n in range(number, number + count)
        ]
        number, put = number + count, put + count * options.block_rows
        begin_s = time.process_time()
        for block in blocks:
            sink.put(block)
        await asyncio.sleep(0.15)
        while sink.figures.waiting_bytes:  # noqa: ASYNC110 - figures tell nobody
            await asyncio.sleep(0.05)
        ours_s += time.process_time() - begin_s
    while sink.figures.written + sink.figures.lost < put:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return put, ours_s


def report_files(directory: str, pid: int, rows: int) -> None:
    """Waits until everything is in Parquet files."""
    root = Path(directory)
    spool = sum(path.stat().st_size for path in root.glob("_spool/*"))
    print(f"spool: {spool / rows:.0f} bytes a row")
    begin_s, begin_cpu_s = time.monotonic(), cpu_s(pid)
    while any(root.glob("_spool/*.spool")):
        time.sleep(0.2)
    took_s, took_cpu_s = time.monotonic() - begin_s, cpu_s(pid) - begin_cpu_s
    print(f"the last Parquet file after {took_s:.1f} s, {took_cpu_s:.1f} s CPU")
    sizes = [path.stat().st_size for path in root.glob("date=*/group=*/*.parquet")]
    print(f"{len(sizes)} files, {sum(sizes) / rows:.1f} bytes a row")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.event_log")
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--block-rows", type=int, default=5)
    parser.add_argument("--age-ms", type=int, default=10_000)
    parser.add_argument("--kafka", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(options, directory))


if __name__ == "__main__":
    main()
