"""All commands of operators, in one class for the protocols.

Reads show committed state. Changes are one transaction of the store each; live actors notice them
as they notice another coordinator's: their next commit is fenced, and they load anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharecoord.runtime.admin.access import AccessCommands
from sharecoord.runtime.admin.configs import ConfigCommands
from sharecoord.runtime.admin.descriptions import DescribeCommands
from sharecoord.runtime.admin.force import ForceCommands
from sharecoord.runtime.admin.groups import GroupCommands
from sharecoord.runtime.admin.in_flight import InFlightCommands
from sharecoord.runtime.admin.keys import KeyCommands
from sharecoord.runtime.admin.letters import LetterCommands
from sharecoord.runtime.admin.migration import MigrationCommands
from sharecoord.runtime.admin.pauses import PauseCommands
from sharecoord.runtime.admin.replay import ReplayCommands
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.kernel.store_thread import StoreCaller


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """Facts about a coordinator that do not change while it runs."""

    version: str
    kafka_cluster_id: str
    """"" when the cluster has none."""
    kafka_bootstrap_servers: str
    store: str
    """The store's URL without its password."""


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """A running coordinator."""

    coordinator_id: str
    info: CoordinatorInfo
    uptime_ms: int


class Admin(
    GroupCommands,
    DescribeCommands,
    ConfigCommands,
    MigrationCommands,
    PauseCommands,
    ForceCommands,
    InFlightCommands,
    KeyCommands,
    ReplayCommands,
    LetterCommands,
    AccessCommands,
):
    """The commands of one coordinator; each is a call of AdminService by the same name."""

    def __init__(
        self, coordinator: Coordinator, info: CoordinatorInfo, *, reads: StoreCaller | None = None
    ) -> None:
        super().__init__(coordinator, reads)
        self._info = info
        self._started_ms = coordinator.context.clock.now_ms()

    async def describe_coordinator(self) -> CoordinatorView:
        """Describes the coordinator itself."""
        uptime_ms = self._context.clock.now_ms() - self._started_ms
        return CoordinatorView(self._context.coordinator_id, self._info, uptime_ms)
