"""A real Kafka cluster of several brokers as child processes, for tests of what one can not show.

The first broker is the controller as well, and has to live; the others may be killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from sharecoord.devenv import broker_config
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.maven import DEFAULT_VERSION, kafka_release

BROKERS_MAX = 9
"""A JVM each: more than that is a mistake on the machine of a test."""


class _JoiningBroker(KafkaBroker):
    """One more broker of the cluster of another one."""

    def __init__(
        self, first: KafkaBroker, node_id: int, settings: Mapping[str, str], heap_mb: int
    ) -> None:
        super().__init__(first.version, settings=settings, heap_mb=heap_mb)
        self._first = first
        self._node_id = node_id
        self._cluster_id = first._cluster_id

    def _own_settings(self) -> dict[str, str]:
        controllers = self._first._own_settings()["controller.quorum.voters"]
        port = self._ports[0]
        return broker_config.joining_settings(
            self._node_id, port, controllers, self.data_dir / "data"
        )


class KafkaCluster:
    """Brokers with the ids 1, 2, 3, …; broker n is in rack `rack-n`.

    ```
    with KafkaCluster(3) as cluster:
        cluster.broker(2).kill()
    ```
    """

    def __init__(
        self,
        brokers: int = 3,
        version: str = DEFAULT_VERSION,
        *,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 256,
    ) -> None:
        """Checks the arguments; nothing is started yet.

        Args:
            brokers: How many.
            version: A key of `maven.RELEASES`, without ZooKeeper.
            settings: As for `KafkaBroker`, of all of them.
            heap_mb: Bound of each Java heap in MiB.

        Raises:
            DevenvError: An argument can not be used.
        """
        if not 1 <= brokers <= BROKERS_MAX:
            raise DevenvError(f"brokers: {brokers}; use 1 to {BROKERS_MAX}")
        if kafka_release(version).zookeeper:
            raise DevenvError(f"version: {version} needs ZooKeeper; use one without")
        each = [{**(settings or {}), "broker.rack": f"rack-{n + 1}"} for n in range(brokers)]
        first = KafkaBroker(version, settings=each[0], heap_mb=heap_mb)
        self._brokers = [first]
        for n in range(1, brokers):
            self._brokers.append(_JoiningBroker(first, n + 1, each[n], heap_mb))

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, for clients."""
        return ",".join(broker.bootstrap_servers for broker in self._brokers)

    def broker(self, node_id: int) -> KafkaBroker:
        """One of the brokers, to be killed and started again."""
        return self._brokers[node_id - 1]

    def start(self) -> None:
        """Starts all brokers, and waits until each answers."""
        try:
            for broker in self._brokers:
                broker.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the brokers and deletes what they wrote."""
        for broker in reversed(self._brokers):
            broker.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
