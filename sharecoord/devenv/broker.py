"""A real single-node Kafka broker as a child process, for tests, benchmarks and the demo.

Seconds on two shared cores with Java 17, jars in the cache, from the call to the first metadata
answer:

| release | first start | start after kill -9 | start after stop | stop |
|---|---|---|---|---|
| 4.3.1 | 2.7-3.5 | 3.8-4.0 | 2.2 | 0.4 |
| 4.4.0 | 2.8 | 4.2 | 2.2 | 0.4 |
| 3.9.1 | 2.5 | 5.0 | 2.0 | 0.4 |
| 2.8.2 with ZooKeeper | 1.9 | 9.2 | 1.9 | 1.6-3.5 |

After kill -9 the cluster lets the broker in again when the session of the killed one has expired:
2 s here (`broker.session.timeout.ms`, by default 9 s, then the start takes 12 to 15 s), 6 s with
ZooKeeper.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]

from sharecoord.devenv import broker_config
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.maven import DEFAULT_VERSION, find_java, kafka_libs, kafka_release
from sharecoord.devenv.processes import LOOPBACK, GuardedProcess, Server, free_ports, port_open

MIN_HEAP_MB = 128
STOP_GRACE_S = 20.0
PORT_ATTEMPTS = 3

_COMPILE_ONCE = "-XX:TieredStopAtLevel=1"
"""Without the JVM's second compiler, which costs a process of many classes and a short life more
than it gives: a start takes half the CPU, and so do the first thousands of records."""
_PORT_TAKEN = "Address already in use"
_STALE_REGISTRATION = b"NodeExists"
"""In the log: the registration that a killed broker left in ZooKeeper until its session expires."""
_PARTITION = re.compile(r".+-\d+")
"""A partition's directory; those on their way out end in `.<id>-delete` or `.<id>-stray`."""
_METADATA_LOG = "__cluster_metadata-0"


class KafkaBroker(Server):
    """A broker on free loopback ports, with its data in one directory.

    ```
    with KafkaBroker() as broker:
        Producer({"bootstrap.servers": broker.bootstrap_servers})
    ```

    The broker ends with this process, however that ends. Ports and data are kept over `stop`,
    `kill`, `start` and `restart`; `close` (the end of the `with` block) deletes the data.
    """

    name = "the broker"

    def __init__(
        self,
        version: str = DEFAULT_VERSION,
        *,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        start_timeout_s: float = 60.0,
        measured: bool = False,
    ) -> None:
        """Checks the arguments; nothing is started or written yet.

        Args:
            version: A key of `maven.RELEASES`.
            settings: Broker settings over those of `broker_config.TEST_SETTINGS`.
            listeners: More listeners beside the one in plaintext, name → security protocol, as
                {"LOCKED": "SASL_SSL"}; `address` gives where they are.
            heap_mb: Bound of the Java heap in MiB, at least 128.
            start_timeout_s: How long `start` waits for the broker.
            measured: Whether it is as fast as it can be after its first minutes, as in a
                benchmark; otherwise the JVM's second compiler is left out, and it starts sooner.

        Raises:
            DevenvError: An argument can not be used.
        """
        if heap_mb < MIN_HEAP_MB:
            raise DevenvError(f"heap_mb: {heap_mb} is too little, use {MIN_HEAP_MB} or more")
        self.version = version
        self._release = kafka_release(version)
        self._settings = broker_config.checked_settings(settings or {})
        self._listeners = dict(listeners or {})
        self._options = [f"-Xmx{heap_mb}m", *(() if measured else (_COMPILE_ONCE,))]
        self._start_timeout_s = start_timeout_s
        self._data_dir: Path | None = None
        self._ports: list[int] = []
        self._zookeeper: GuardedProcess | None = None
        self._cluster_id = broker_config.new_cluster_id()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; the same after a restart."""
        if not self._ports:
            raise DevenvError("the broker has no port yet: call start() first")
        return f"{LOOPBACK}:{self._ports[0]}"

    def address(self, listener: str) -> str:
        """`host:port` of one of `listeners`; the same after a restart."""
        if not self._ports:
            raise DevenvError("the broker has no port yet: call start() first")
        names = list(self._listeners)
        if listener not in names:
            known = ", ".join(names) or "none"
            raise DevenvError(f"the broker has no listener {listener}; it has {known}")
        return f"{LOOPBACK}:{self._ports[2 + names.index(listener)]}"

    @property
    def data_dir(self) -> Path:
        """Directory of the data, the property files and the logs."""
        if self._data_dir is None:
            raise DevenvError("the broker has no directory yet: call start() first")
        return self._data_dir

    @property
    def log_dir(self) -> Path:
        """Directory in which each partition has a directory with its segments."""
        return self.data_dir / "data"

    def start(self) -> None:
        """Starts the broker and waits until it answers."""
        if self.running:
            raise DevenvError(f"the broker is running already (pid {self.pid})")
        self.kill()  # lets go of a process that ended by itself or was killed by somebody else
        deadline_s = time.monotonic() + self._start_timeout_s
        first = not self._ports
        try:
            if first:
                atexit.register(self.close)
                self._start_first(deadline_s)
            else:
                self._launch(deadline_s)
        except BaseException:
            self.kill()
            self._end_zookeeper(0.0)
            if first:
                self.close()
            raise

    def stop(self) -> None:
        """Stops the broker in order (SIGTERM; kill -9 after 20 s). Data and ports are kept."""
        if self._process is not None:
            self._process.stop(STOP_GRACE_S)
        self._end_zookeeper(STOP_GRACE_S)

    def kill(self) -> None:
        """Ends the broker with kill -9, as a crash does. ZooKeeper, if there is one, runs on."""
        super().kill()

    def restart(self) -> None:
        """Stops the broker if it runs, and starts it on the same ports and data."""
        if self.running:
            self.stop()
        self.start()

    def close(self) -> None:
        """Ends the broker and deletes what it wrote."""
        atexit.unregister(self.close)
        self.kill()
        self._end_zookeeper(0.0)
        if self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
        self._data_dir = None
        self._ports = []

    # -- bringing it up ---------------------------------------------------------------------------

    def _start_first(self, deadline_s: float) -> None:
        """Chooses directory and ports, ports again if another process took them meanwhile."""
        self._data_dir = Path(tempfile.mkdtemp(prefix="sharecoord-kafka-"))
        for attempt in range(1, PORT_ATTEMPTS + 1):
            self._ports = free_ports(2 + len(self._listeners))
            try:
                self._launch(deadline_s)
                return
            except DevenvError as error:
                if _PORT_TAKEN not in error.message or attempt == PORT_ATTEMPTS:
                    raise
                self.kill()
                self._end_zookeeper(0.0)

    def _launch(self, deadline_s: float) -> None:
        """Writes the property files, starts the processes, waits until the broker answers."""
        port, second_port = self._ports[:2]
        own = self._own_settings()
        properties = self.data_dir / "server.properties"
        broker_config.write_properties(properties, {**self._settings, **own})
        if self._release.zookeeper:
            self._start_zookeeper(second_port, deadline_s)
        else:
            self._format(properties)
        argv = [*self._java(*self._options), "kafka.Kafka", str(properties)]
        self._process = process = self._guarded(f"kafka-{self.version}", argv, "broker.log")
        log_start = _size(process.log_path)
        process.start()
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

        def answers() -> bool:
            nonlocal log_start
            # The cheap look first; releases before KRaft open the port before they are registered.
            if port_open(port):
                with contextlib.suppress(KafkaException):
                    return self._serves_all(client.list_topics(timeout=1.0))
            if process.exit_code is not None and self._was_too_early(process.log_path, log_start):
                log_start = _size(process.log_path)
                process.start()
            return False

        process.wait_until(answers, deadline_s)

    def _own_settings(self) -> dict[str, str]:
        """What follows from ports and directory."""
        build = (
            broker_config.zookeeper_broker_settings
            if self._release.zookeeper
            else broker_config.kraft_settings
        )
        port, second_port, *more_ports = self._ports
        own = build(port, second_port, self.log_dir)
        return broker_config.with_listeners(own, self._listeners, more_ports)

    def _guarded(self, name: str, argv: Sequence[str], log_name: str) -> GuardedProcess:
        log_path = self.data_dir / log_name
        return GuardedProcess(name, argv, log_path=log_path, scratch=self.data_dir)

    def _java(self, *options: str) -> list[str]:
        """The command line of a Java program of this release, up to its main class."""
        # Three logging libraries, one per line of releases; each ignores the others' options.
        logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        for name, option, text in broker_config.LOGGING:
            path = self.data_dir / name
            path.write_text(text, encoding="utf-8")
            logging.append(f"-D{option}={path.as_uri()}")
        class_path = f"{kafka_libs(self.version)}/*"
        return [str(find_java()), "-cp", class_path, "-Djava.awt.headless=true", *logging, *options]

    def _format(self, properties: Path) -> None:
        """Writes the cluster id into a fresh data directory; a used one has it."""
        if (self.data_dir / "data" / "meta.properties").is_file():
            return
        command = [*self._java(_COMPILE_ONCE), "kafka.tools.StorageTool", "format"]
        command += ["-t", self._cluster_id, "-c", str(properties)]
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            said = (answer.stdout + answer.stderr).strip()
            raise DevenvError(f"Kafka {self.version} could not format its directory:\n{said}")

    def _start_zookeeper(self, port: int, deadline_s: float) -> None:
        if self._zookeeper is not None and self._zookeeper.alive:
            return
        self._end_zookeeper(0.0)
        properties = self.data_dir / "zookeeper.properties"
        settings = broker_config.zookeeper_settings(port, self.data_dir / "zookeeper")
        broker_config.write_properties(properties, settings)
        main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        argv = [*self._java("-Xmx128m", _COMPILE_ONCE), main_class, str(properties)]
        self._zookeeper = process = self._guarded("zookeeper", argv, "zookeeper.log")
        process.start()
        process.wait_until(lambda: port_open(port), deadline_s)

    def _end_zookeeper(self, grace_s: float) -> None:
        if self._zookeeper is not None:
            self._zookeeper.stop(grace_s)
            self._zookeeper = None

    def _serves_all(self, metadata: ClusterMetadata) -> bool:
        """Whether the broker is listed and leads every partition that is on its disk.

        After a restart clients are answered before the controller has told the broker about its
        partitions. The disk is read again each time: a topic whose deletion was under way goes.
        """
        led = {
            f"{topic}-{number}"
            for topic, each in metadata.topics.items()
            for number, partition in each.partitions.items()
            if partition.leader >= 0
        }
        folders = {path.name for path in (self.data_dir / "data").iterdir() if path.is_dir()}
        on_disk = {name for name in folders if _PARTITION.fullmatch(name)} - {_METADATA_LOG}
        return bool(metadata.brokers) and on_disk <= led

    def _was_too_early(self, log_path: Path, log_start: int) -> bool:
        """Whether the broker ended because its predecessor's ZooKeeper session still lives."""
        with log_path.open("rb") as log:
            log.seek(log_start)
            return self._release.zookeeper and _STALE_REGISTRATION in log.read()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
