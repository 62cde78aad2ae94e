"""How fast one consumer takes records from a stream: a script, not a test.

    python tests/perf/sdk_stream.py [--records 2000000] [--batch 500] [--json]

A bare server in its own process sends prepared batches as fast as credits allow and confirms
every acknowledgement, so the figures are the SDK's own. Prints records per second and CPU
microseconds of the client process per record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import subprocess
import sys
import threading
import time
from concurrent import futures
from typing import Any

import grpc
from sharecoord_sdk import AsyncShareConsumer, ShareConsumer
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

_DISTINCT_BATCHES = 64


def prepared_batches(value_bytes: int, batch_records: int) -> list[bytes]:
    """Serialized answers with one batch each; offsets and tokens differ from one to the next."""
    made = []
    for number in range(_DISTINCT_BATCHES):
        base = number * batch_records
        batch = types_pb.RecordBatch(
            partition=types_pb.TopicPartition(topic="perf", partition=0, topic_id=b"0" * 16),
            base_offset=base,
            record_count=batch_records,
            timestamps_ms=[1_700_000_000_000] * batch_records,
            timestamp_type=1,
            values=[b"x" * value_bytes] * batch_records,
            ranges=[
                types_pb.AcquiredRange(
                    first_offset=base,
                    last_offset=base + batch_records - 1,
                    delivery_count=1,
                    lock_token=number + 1,
                    lock_remaining_ms=3_600_000,
                )
            ],
        )
        made.append(service_pb.ConsumeResponse(batches=[batch]).SerializeToString())
    return made


def _until_cancelled(requests: Any) -> Any:
    """The requests of a stream; a client that goes away ends them."""
    try:
        yield from requests
    except grpc.RpcError:
        return


class Server:
    """Sends batches while there is credit."""

    def __init__(self, value_bytes: int, batch_records: int) -> None:
        self._batches = prepared_batches(value_bytes, batch_records)
        self._batch_records = batch_records

    def consume(self, requests: Any, context: grpc.ServicerContext) -> Any:
        """One stream."""
        answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        credit = threading.Semaphore(0)
        state = {"granted": 0}
        ended = threading.Event()
        context.add_callback(ended.set)

        def read() -> None:
            for request in _until_cancelled(requests):
                given = request.join.credit if request.HasField("join") else request.credit
                batches = given.records_total // self._batch_records
                if batches > state["granted"]:
                    credit.release(batches - state["granted"])
                    state["granted"] = batches
                if request.acknowledge_id:
                    result = service_pb.AcknowledgeResult(acknowledge_id=request.acknowledge_id)
                    answer = service_pb.ConsumeResponse(results=[result])
                    answers.put(answer.SerializeToString())
                if request.leave:
                    answers.put(None)
                    credit.release(1)

        threading.Thread(target=read, daemon=True).start()
        joined = service_pb.Joined(lock_duration_ms=30_000, protocol_version=1)
        yield service_pb.ConsumeResponse(joined=joined).SerializeToString()
        number = 0
        while context.is_active():
            while not answers.empty():
                answer = answers.get()
                if answer is None:
                    yield service_pb.ConsumeResponse(left=True).SerializeToString()
                    # The client ends the stream, which it can not do too early.
                    ended.wait(1.0)
                    return
                yield answer
            if credit.acquire(timeout=0.02):
                yield self._batches[number % _DISTINCT_BATCHES]
                number += 1

    def run(self) -> None:
        """Serves until standard input is closed; prints the port."""
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        handler = grpc.stream_stream_rpc_method_handler(
            self.consume, request_deserializer=service_pb.ConsumeRequest.FromString
        )
        methods = grpc.method_handlers_generic_handler(
            "sharecoord.v1.ShareService", {"Consume": handler}
        )
        server.add_generic_rpc_handlers((methods,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(port, flush=True)
        sys.stdin.read()
        server.stop(None)


class Stopwatch:
    """Counts records and takes the time, once a tenth of them has warmed everything up."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._warm = self._taken = 0
        self._started = self._cpu = 0.0

    @property
    def done(self) -> bool:
        """Whether all records have come."""
        return self._taken >= self._records

    def took(self, count: int) -> None:
        """A poll gave so many."""
        if self._warm < self._records // 10:
            self._warm += count
            self._started, self._cpu = time.monotonic(), time.process_time()
        else:
            self._taken += count

    def figures(self) -> dict[str, float]:
        """Of all that came after the warm-up."""
        return {
            "records_per_s": round(self._taken / (time.monotonic() - self._started)),
            "cpu_us_per_record": round((time.process_time() - self._cpu) / self._taken * 1e6, 3),
        }


def run_sync(port: int, records: int, *, explicit: bool, poll_records: int) -> dict[str, float]:
    """One run of the synchronous consumer that touches every value."""
    consumer = ShareConsumer(_conf(port, explicit=explicit, poll_records=poll_records))
    consumer.subscribe(["perf"])
    watch = Stopwatch(records)
    while not watch.done:
        messages = consumer.poll(1.0)
        if explicit:
            for message in messages:
                message.value()
                consumer.acknowledge(message)
        else:
            for message in messages:
                message.value()
        watch.took(len(messages))
    figures = watch.figures()
    consumer.close()
    return figures


async def run_async(
    port: int, records: int, *, explicit: bool, poll_records: int
) -> dict[str, float]:
    """The same for the asyncio consumer."""
    consumer = AsyncShareConsumer(_conf(port, explicit=explicit, poll_records=poll_records))
    await consumer.subscribe(["perf"])
    watch = Stopwatch(records)
    while not watch.done:
        messages = await consumer.poll(1.0)
        for message in messages:
            message.value()
            if explicit:
                consumer.acknowledge(message)
        watch.took(len(messages))
    figures = watch.figures()
    await consumer.close()
    return figures


def _conf(port: int, *, explicit: bool, poll_records: int) -> dict[str, object]:
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "group.id": "perf",
        "max.poll.records": poll_records,
        "share.acknowledgement.mode": "explicit" if explicit else "implicit",
    }


def main() -> None:
    """Runs every combination and prints one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--poll", type=int, default=500, help="max.poll.records")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("sync", "async"))
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        Server(args.serve, args.batch).run()
        return
    for value_bytes in (100, 1000):
        records = args.records if value_bytes == 100 else args.records // 2
        command = [
            sys.executable,
            __file__,
            "--serve",
            str(value_bytes),
            "--batch",
            str(args.batch),
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for shell in ("sync", "async"):
                if args.only not in (None, shell):
                    continue
                for explicit in (False, True):
                    options = {"explicit": explicit, "poll_records": args.poll}
                    figures = (
                        run_sync(port, records, **options)
                        if shell == "sync"
                        else asyncio.run(run_async(port, records, **options))
                    )
                    _print(shell, value_bytes, explicit=explicit, figures=figures, raw=args.json)


def _print(
    shell: str, value_bytes: int, *, explicit: bool, figures: dict[str, float], raw: bool
) -> None:
    mode = "explicit" if explicit else "implicit"
    if raw:
        print(json.dumps({"shell": shell, "value_bytes": value_bytes, "mode": mode, **figures}))
        return
    rate, cpu = figures["records_per_s"], figures["cpu_us_per_record"]
    print(f"{shell:5} {value_bytes:5} B {mode}: {rate:>10,.0f} records/s, {cpu:.2f} us CPU/record")


if __name__ == "__main__":
    main()
