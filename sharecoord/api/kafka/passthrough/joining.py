"""Questions about Kafka's groups and share groups at once: each part has its own answer.

The share groups are those that the coordinator has, and all other groups are Kafka's. Share groups
that Kafka itself may have are not shown: nobody reaches them through this port.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka import codec
from sharecoord.api.kafka.administration import SHARE
from sharecoord.api.kafka.cluster import Cluster
from sharecoord.api.kafka.codec import Head
from sharecoord.api.kafka.configs import GROUP
from sharecoord.ports import Brokers
from sharecoord.security.principals import Caller

Call = Callable[..., Awaitable[Any]]

KAFKAS_OWN: Final = ("consumer.", "streams.")
"""How settings of groups begin that only Kafka's own groups have."""


class Joining:
    """Splits questions, and joins answers."""

    def __init__(
        self,
        brokers: Brokers,
        calls: Mapping[int, Call],
        has_group: Callable[[str], Awaitable[bool]],
    ) -> None:
        """Does nothing yet.

        Args:
            brokers: Kafka's.
            calls: What answers about share groups, by API.
            has_group: Whether the coordinator has a share group.
        """
        self._brokers = brokers
        self._calls = calls
        self._has_group = has_group
        self._answers: dict[int, Call] = {
            codec.LIST_GROUPS: self._list_groups,
            codec.DELETE_GROUPS: self._delete_groups,
            codec.DESCRIBE_CONFIGS: self._describe_configs,
            codec.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            codec.LIST_CONFIG_RESOURCES: self._list_resources,
        }

    def serves(self, key: int) -> bool:
        """Whether an API is one of these."""
        return key in self._answers

    async def answer(
        self, door: Cluster, head: Head, frame: memoryview, caller: Caller, *, passes: bool
    ) -> Any:
        """Answers a request; for who may not pass it on there are share groups alone."""
        client_id, request = codec.read(head, frame)
        if head.api_key == codec.LIST_GROUPS or passes:
            part = _Part(self._brokers, door, head, client_id, passes=passes)
            return await self._answers[head.api_key](part, request, caller)
        return await self._calls[head.api_key](head, request, caller)

    async def _ours(self, part: _Part, request: Any, caller: Caller) -> Any:
        return await self._calls[part.head.api_key](part.head, request, caller)

    async def _list_groups(self, part: _Part, request: Any, caller: Caller) -> Any:
        """All groups of a broker, and at one of them ours: clients ask each one."""
        nodes = self._brokers.nodes
        tells = part.door.node is None or part.door.node == min(nodes, default=part.door.node)
        ours = await self._ours(part, request, caller)
        if not tells:
            ours = replace(ours, groups=())
        if not part.passes:
            return ours
        theirs = await part.asked(request)
        groups = tuple(each for each in theirs.groups if not _is_share(each))
        error = theirs.error_code if ours.error_code is ErrorCode.none else ours.error_code
        return replace(theirs, error_code=error, groups=ours.groups + groups)

    async def _delete_groups(self, part: _Part, request: Any, caller: Caller) -> Any:
        names = request.groups_names
        is_ours = {name: await self._has_group(name) for name in names}
        asked = [
            replace(request, groups_names=tuple(n for n in names if is_ours[n] is kind))
            for kind in (True, False)
        ]
        ours = await self._ours(part, asked[0], caller)
        if not asked[1].groups_names:
            return ours
        theirs = await part.asked(asked[1])
        return replace(theirs, results=(*ours.results, *theirs.results))

    async def _describe_configs(self, part: _Part, request: Any, caller: Caller) -> Any:
        async def is_ours(resource: Any) -> bool:
            return await self._has_group(resource.resource_name)

        return await self._by_resource(part, request, caller, is_ours, "results", described=True)

    async def _alter_configs(self, part: _Part, request: Any, caller: Caller) -> Any:
        async def is_ours(resource: Any) -> bool:
            names = [each.name for each in resource.configs]
            return not names or not all(name.startswith(KAFKAS_OWN) for name in names)

        return await self._by_resource(part, request, caller, is_ours, "responses", described=False)

    async def _by_resource(
        self,
        part: _Part,
        request: Any,
        caller: Caller,
        is_ours: Callable[[Any], Awaitable[bool]],
        name: str,
        *,
        described: bool,
    ) -> Any:
        """Groups of ours are answered here, all else is Kafka's."""
        ours: list[Any] = []
        theirs: list[Any] = []
        for each in request.resources:
            is_group = each.resource_type == GROUP
            (ours if is_group and await is_ours(each) else theirs).append(each)
        found: dict[tuple[int, str], Any] = {}
        answer = None
        if theirs:
            answer = await part.asked(replace(request, resources=tuple(theirs)))
            for told in getattr(answer, name):
                found[_key(told)] = told
            # A broker below 4 knows no settings of groups.
            ours += (
                each
                for each in theirs
                if described
                and each.resource_type == GROUP
                and found[_key(each)].error_code is not ErrorCode.none
            )
        if ours or answer is None:
            here = await self._ours(part, replace(request, resources=tuple(ours)), caller)
            answer = answer or here
            found.update((_key(each), each) for each in getattr(here, name))
        return replace(answer, **{name: tuple(found.values())})

    async def _list_resources(self, part: _Part, request: Any, caller: Caller) -> Any:
        ours = await self._ours(part, request, caller)
        versions = await self._brokers.versions(part.door.node)
        first, last = versions.get(codec.LIST_CONFIG_RESOURCES, (0, -1))
        if not first <= part.head.version <= last or ours.error_code is not ErrorCode.none:
            return ours
        theirs = await part.asked(request)
        found = {(getattr(each, "resource_type", 0), each.resource_name): each
                 for each in (*theirs.config_resources, *ours.config_resources)}  # fmt: skip
        return replace(theirs, config_resources=tuple(found.values()))


class _Part:
    """A question for one broker: where it came in, and how to ask it."""

    def __init__(
        self, brokers: Brokers, door: Cluster, head: Head, client_id: str, *, passes: bool
    ) -> None:
        self._brokers = brokers
        self._client_id = client_id
        self.door, self.head, self.passes = door, head, passes

    async def asked(self, request: Any) -> Any:
        """The broker's answer."""
        frame = codec.frame_of(self.head, self._client_id, request)
        return codec.read_answer(self.head, await self._brokers.ask(self.door.node, frame))


def _is_share(listed: Any) -> bool:
    kind = getattr(listed, "group_type", "") or listed.protocol_type
    return str(kind).lower() == SHARE


def _key(resource: Any) -> tuple[int, str]:
    return int(resource.resource_type), resource.resource_name
