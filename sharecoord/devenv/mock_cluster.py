"""librdkafka's mock cluster in a process of its own: a broker without Java, up in 0.1 to 0.2 s.

`python -m sharecoord.devenv.mock_cluster --ready-file F [--topic T ...]` serves until SIGTERM or
SIGINT and writes `host:port` and a line break to F when it is ready.

What clients can do with it was tried with librdkafka 2.16:

* A topic appears with four partitions when the metadata of a client that may create topics names
  it: producers, admin clients, `--topic`, and consumers with `allow.auto.create.topics=true`.
  Keep to partition 0; a topic of one partition can not be had.
* Produce works, also idempotent, compressed (gzip, snappy, lz4, zstd) and with timestamps, keys
  and headers, which come back unchanged. Acks and offsets are those of a real log.
* A partition keeps about 5 MiB (4,300 records of 1 kB, 47,000 of 100 B) and drops whole batches
  from its front; the log start moves along.
* Watermark offsets (`get_watermark_offsets`), positions by `assign` and `seek` (also into the
  middle of a batch, the beginning and the end), re-reading, end-of-partition events and the error
  `_AUTO_OFFSET_RESET` for an offset out of range under `auto.offset.reset=error` all work, as do
  admin `list_offsets` for earliest and latest. Leader epochs are 0.
* By timestamp, `offsets_for_times` and admin `list_offsets` always answer -1, also for a time that
  has records.
* Consumer groups work: subscribe, commit, committed. The first assignment takes 3 s.
* A fetch that waits is not woken by new data: they come when its `fetch.wait.max.ms` (500) is
  over. Requests behind it on the same connection, such as the consumer's own watermark queries,
  wait as long. Tests that look at time set it to a few milliseconds.
* Transactions end without error, but aborted records are delivered, also under read_committed;
  offsets are skipped as by control records.
* Everything that needs the controller runs into its time limit: create and delete topics,
  describe cluster, describe topics (so there are no topic ids), describe and alter configs.
  Delete records fails with `_UNSUPPORTED_FEATURE`.
* The cluster id is `mockCluster` and an address in memory. A share consumer is given nothing.
"""

from __future__ import annotations

import argparse
import atexit
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.processes import GuardedProcess, Server

START_TIMEOUT_S = 30.0
METADATA_TIMEOUT_S = 10.0


class MockCluster(Server):
    """The mock cluster as a child process that ends with this one.

    ```
    with MockCluster(topics=["orders"]) as cluster:
        Producer({"bootstrap.servers": cluster.bootstrap_servers})
    ```

    Data live in the process: `close` and `kill` lose them, and a new start has a new address.
    """

    name = "the mock cluster"

    def __init__(self, *, topics: Sequence[str] = ()) -> None:
        """Nothing is started yet; `topics` are there from the start, with four partitions each."""
        self._topics = tuple(topics)
        self._directory: Path | None = None
        self._address = ""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; DevenvError while the mock cluster does not run."""
        if not self._address:
            raise DevenvError("the mock cluster is not running: call start() first")
        return self._address

    def start(self) -> None:
        """Starts the process and waits for its address."""
        if self._process is not None:
            raise DevenvError(f"the mock cluster is running already (pid {self.pid})")
        self._directory = directory = Path(tempfile.mkdtemp(prefix="sharecoord-mock-"))
        ready = directory / "ready"
        argv = [sys.executable, "-m", "sharecoord.devenv.mock_cluster", "--ready-file", str(ready)]
        for topic in self._topics:
            argv += ["--topic", topic]
        log_path = directory / "mock.log"
        self._process = GuardedProcess(self.name, argv, log_path=log_path, scratch=directory)
        atexit.register(self.close)
        try:
            self._process.start()
            self._process.wait_until(ready.is_file, time.monotonic() + START_TIMEOUT_S)
            self._address = ready.read_text(encoding="utf-8").strip()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process and deletes its files."""
        atexit.unregister(self.close)
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory, self._process, self._address = None, None, ""


def serve(ready_file: Path, topics: Sequence[str]) -> None:
    """Runs the mock cluster in this process until SIGTERM or SIGINT.

    The ready file gets the address when everything is ready. DevenvError: the mock cluster does not
    answer, or the file can not be written.
    """
    signals = {signal.SIGTERM, signal.SIGINT}
    # Before librdkafka starts its threads, which inherit the mask: so the signal waits for us.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 3})
    try:
        brokers = list(producer.list_topics(timeout=METADATA_TIMEOUT_S).brokers.values())
        for topic in topics:
            producer.list_topics(topic, timeout=METADATA_TIMEOUT_S)
        fresh = ready_file.with_name(ready_file.name + ".new")
        fresh.write_text(f"{brokers[0].host}:{brokers[0].port}\n", encoding="utf-8")
        fresh.replace(ready_file)
    except KafkaException as error:
        raise DevenvError(f"the mock cluster does not answer: {error}") from error
    except OSError as error:
        raise DevenvError(f"--ready-file: {ready_file} can not be written: {error}") from error
    signal.sigwait(signals)
    ready_file.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sharecoord.devenv.mock_cluster")
    parser.add_argument("--ready-file", type=Path, required=True, help="gets host:port when ready")
    parser.add_argument("--topic", action="append", default=[], help="created at once; repeatable")
    options = parser.parse_args(arguments)
    try:
        serve(options.ready_file, options.topic)
    except DevenvError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
