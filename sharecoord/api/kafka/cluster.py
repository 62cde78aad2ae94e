"""The cluster as members see it: one broker, which leads every partition and every group."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka.codec import VERSIONS, Head, make
from sharecoord.api.kafka.connections.connection import Connection
from sharecoord.api.kafka.errors import code_of
from sharecoord.config.endpoints import TcpAddress
from sharecoord.errors import InvalidRequestError, SharecoordError
from sharecoord.security.actions import ACTIONS_OF, Action, Kind, group
from sharecoord.security.guard import Guard, refusal
from sharecoord.security.principals import Caller

NODE_ID: Final = 1
"""The broker that this coordinator passes for."""

NO_TIME: Final = timedelta(0)


GROUPS: Final = 0
"""The type of coordinators' keys that are groups."""

BROKERS, CONTROLLERS = 1, 2
"""Types of endpoints."""

NOT_ASKED: Final = -(2**31)
"""Stands for what a caller may do where that was not asked."""

_BITS: Final = {"read": 3, "delete": 6, "describe": 8, "describe_configs": 10, "alter_configs": 11}


_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]{0,126}[a-zA-Z0-9])?")
"""Names and versions of clients that Kafka takes, of a length that can be shown."""


def operations(*names: str) -> int:
    """Operations as one number, a bit for each (Kafka's AclOperation)."""
    return sum(1 << _BITS[name] for name in names)


OPERATIONS: Final = operations("describe")
"""Operations on the cluster at this port, as Kafka's tools show them."""


class Cluster:
    """Answers questions about brokers and groups' places, as one listener's clients see them."""

    def __init__(self, cluster_id: str, guard: Guard, node: int | None = None) -> None:
        """The guard says whom groups concern."""
        self._guard = guard
        self.cluster_id = cluster_id
        self.address = TcpAddress("", 0)
        """Where members reach the listener."""
        self.node = node
        """The broker of Kafka for which the listener stands; None = for none of them alone."""
        self._node_id = NODE_ID if node is None else node

    @property
    def _broker(self) -> dict[str, Any]:
        """The one broker, by the names that the fields of answers have."""
        return {
            "node_id": self._node_id,
            "broker_id": self._node_id,
            "host": self.address.host,
            "port": self.address.port,
        }

    def api_versions(self, head: Head, error: ErrorCode = ErrorCode.none) -> Any:
        """The APIs of this port, with their versions."""
        keys = [
            make(head, "ApiVersion", api_key=key, min_version=first, max_version=last)
            for key, (first, last) in sorted(VERSIONS.items())
        ]
        return make(
            head,
            "ApiVersionsResponse",
            error_code=error,
            api_keys=tuple(keys),
            throttle_time=NO_TIME,
        )

    def greeted(self, head: Head, request: Any, connection: Connection) -> Any:
        """The APIs of this port; the client may have said what it is (KIP-511)."""
        name = getattr(request, "client_software_name", None)
        if name is not None:
            version = request.client_software_version
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
                return self.api_versions(head, ErrorCode.invalid_request)
            connection.software = f"{name} {version}"
        return self.api_versions(head)

    def find_coordinator(self, head: Head, request: Any, caller: Caller) -> Any:
        """This broker, for every group with which the caller may do something.

        Transactions, and all else, have no coordinator here.
        """
        kind = getattr(request, "key_type", GROUPS)
        if head.version < 4:
            found = self._coordinator(kind, request.key, caller)
            return make(head, "FindCoordinatorResponse", throttle_time=NO_TIME, **found)
        coordinators = tuple(
            make(head, "Coordinator", key=key, **self._coordinator(kind, key, caller))
            for key in request.coordinator_keys
        )
        return make(
            head, "FindCoordinatorResponse", throttle_time=NO_TIME, coordinators=coordinators
        )

    def _coordinator(self, kind: int, group_id: str, caller: Caller) -> dict[str, Any]:
        error: SharecoordError
        if kind != GROUPS:
            error = InvalidRequestError(
                f"this port has share groups, and no coordinator of key type {kind}; connect to "
                "Kafka itself"
            )
        else:
            what, decide = group(group_id), self._guard.decide
            decisions = [decide(caller, action, what) for action in ACTIONS_OF[Kind.GROUP]]
            if any(each.is_allowed for each in decisions):
                return {"error_code": ErrorCode.none, "error_message": None, **self._broker}
            error = refusal(caller, Action.CONSUME, what, decisions[0])
            self._guard.tell(caller, "FindCoordinator", error, resources=[str(what)])
        nowhere = {"node_id": -1, "host": "", "port": -1}
        return {"error_code": code_of(error), "error_message": error.message, **nowhere}

    def metadata(self, head: Head, request: Any, topics: tuple[Any, ...]) -> Any:
        """The brokers, which are this one, with some topics."""
        broker = make(head, "MetadataResponseBroker", **self._broker, rack=None)
        is_asked = getattr(request, "include_cluster_authorized_operations", False)
        return make(
            head,
            "MetadataResponse",
            throttle_time=NO_TIME,
            brokers=(broker,),
            cluster_id=self.cluster_id or None,
            controller_id=NODE_ID,
            topics=topics,
            cluster_authorized_operations=OPERATIONS if is_asked else NOT_ASKED,
            error_code=ErrorCode.none,
        )

    def describe_cluster(self, head: Head, request: Any) -> Any:
        """The cluster with its one broker."""
        asked = getattr(request, "endpoint_type", BROKERS)
        if asked != BROKERS:
            is_known = asked == CONTROLLERS
            return make(
                head,
                "DescribeClusterResponse",
                throttle_time=NO_TIME,
                error_code=ErrorCode.mismatched_endpoint_type
                if is_known
                else ErrorCode.unsupported_endpoint_type,
                error_message="this port is a broker, not a controller"
                if is_known
                else f"endpoint type {asked} is not known; 1 is that of brokers",
                cluster_id="",
                controller_id=-1,
                brokers=(),
                cluster_authorized_operations=NOT_ASKED,
            )
        broker = make(head, "DescribeClusterBroker", **self._broker, rack=None, is_fenced=False)
        is_asked = request.include_cluster_authorized_operations
        return make(
            head,
            "DescribeClusterResponse",
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            cluster_id=self.cluster_id,
            controller_id=NODE_ID,
            brokers=(broker,),
            cluster_authorized_operations=OPERATIONS if is_asked else NOT_ASKED,
        )
