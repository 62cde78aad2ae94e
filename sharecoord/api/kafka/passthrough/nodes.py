"""Ports of this coordinator that stand for Kafka's brokers, one for each.

A broker's port follows from its id alone, so clients find it again after a restart, and when other
brokers come and go. A port that was opened stays open: its broker may come back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog

from sharecoord.config.endpoints import TcpAddress
from sharecoord.errors import InvalidConfigError, SharecoordError
from sharecoord.ports import BrokerAddress, Brokers

log = structlog.get_logger(__name__)

PORT_MAX: Final = 65_535

PORTS_MAX: Final = 1_000
"""Most ports for brokers: a cluster of more is beyond what one coordinator passes on for."""

Open = Callable[[int, TcpAddress, TcpAddress], Awaitable[None]]
"""Opens the port of a broker: its id, where to listen, and what clients are told. It raises an
InvalidConfigError where the address can not be had."""


class NodePorts:
    """Which broker is at which port."""

    def __init__(self, brokers: Brokers, open_port: Open) -> None:
        self.brokers = brokers
        self._open_port = open_port
        self._first = 0
        self._listen = self._advertised = ""
        self._open: dict[int, TcpAddress] = {}
        self._refused: dict[int, str] = {}
        """Brokers without a port, and why."""

    async def start(self, listen: str, advertised: str, first: int) -> None:
        """Opens ports for the brokers that there are.

        Args:
            listen: The host to listen at.
            advertised: The host that clients are told.
            first: Port of a broker with the id 0.
        """
        self._listen, self._advertised, self._first = listen, advertised, first
        try:
            await self.brokers.refresh()
        except SharecoordError as error:
            log.warning("Kafka port: brokers get their ports when they are known",
                        why=error.message)  # fmt: skip
        await self._follow(self.brokers.nodes)

    def address(self, node: int) -> TcpAddress | None:
        """The address that clients are told of a broker; None = it has no port here."""
        return self._open.get(node)

    async def learn(self, nodes: Mapping[int, BrokerAddress]) -> None:
        """Takes in all brokers that an answer names."""
        self.brokers.learn(nodes)
        await self._follow(nodes)

    async def learn_more(self, nodes: Mapping[int, BrokerAddress]) -> None:
        """Takes in brokers that an answer names, which are not all."""
        known = self.brokers.nodes
        news = {node: each for node, each in nodes.items() if node not in known}
        if news:
            await self.learn({**known, **news})

    async def _follow(self, nodes: Mapping[int, BrokerAddress]) -> None:
        for node in nodes:
            if node in self._open:
                continue
            port = self._first + node
            try:
                if not 0 < port <= PORT_MAX:
                    raise InvalidConfigError(
                        f"port {port} is none: kafka.port.passthrough.ports is {self._first} and "
                        f"the broker's id is {node}. Set a lower first port"
                    )
                if len(self._open) >= PORTS_MAX:
                    raise InvalidConfigError(f"{PORTS_MAX} brokers have ports already")
                told = TcpAddress(self._advertised, port)
                # Told first: a second answer that comes meanwhile does not open it again.
                self._open[node] = told
                await self._open_port(node, TcpAddress(self._listen, port), told)
            except InvalidConfigError as error:
                self._open.pop(node, None)
                if self._refused.get(node) != error.message:
                    self._refused[node] = error.message
                    log.error("Kafka port: nothing is passed on to a broker, its partitions can "
                              "not be reached", broker=node, why=error.message)  # fmt: skip
