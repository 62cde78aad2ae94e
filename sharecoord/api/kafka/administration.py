"""Answers to `kafka-share-groups` and admin clients: groups, their members and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.checks import check_group_id
from sharecoord.api.kafka.cluster import NO_TIME, NOT_ASKED, operations
from sharecoord.api.kafka.codec import Head, make
from sharecoord.api.kafka.errors import code_of
from sharecoord.api.kafka.topic_ids import TopicIds
from sharecoord.errors import GroupNotFoundError, InvalidRequestError, SharecoordError
from sharecoord.runtime.admin.descriptions import GroupView, MemberView, PartitionView
from sharecoord.runtime.admin.groups import GroupState
from sharecoord.runtime.admin.operators import Operators
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetTo
from sharecoord.security.actions import Action
from sharecoord.security.principals import Caller

SHARE: Final = "share"
"""The type of all groups here, as `kafka-groups` shows it."""

ASSIGNOR: Final = "simple"
"""The name of Kafka's own assignor: each member gets all partitions of its topics."""

NO_OFFSET: Final = -1
"""Stands for an offset or a lag that nobody knows."""

_DEAD_IS_ERROR: Final = 6
"""The version of DescribeGroups from which on a group that is not there is an error."""

_INT32_MAX: Final = 2**31 - 1
_OPERATIONS: Final = {
    Action.CONSUME: ["read"],
    Action.DELETE: ["delete"],
    Action.DESCRIBE: ["describe", "describe_configs"],
    Action.CONFIGURE: ["alter_configs"],
}
"""Kafka's operations on groups, by the actions that allow them."""


class Administration:
    """Answers operators, as `security.rules.file` lets them."""

    def __init__(self, operators: Operators, ids: TopicIds) -> None:
        self._operators = operators
        self._ids = ids

    async def list_groups(self, head: Head, request: Any, caller: Caller) -> Any:
        """All share groups; none for who asks for groups of other types alone."""
        types = {each.lower() for each in getattr(request, "types_filter", ())}
        states = {each.lower() for each in getattr(request, "states_filter", ())}
        listed, error = [], None
        try:
            if not types or SHARE in types:
                listed = await self._operators.call(caller, "list_groups", {})
        except SharecoordError as problem:
            error = problem
        groups = tuple(
            make(
                head,
                "ListedGroup",
                group_id=each.group_id,
                protocol_type=SHARE,
                group_state=each.state.value,
                group_type=SHARE,
            )
            for each in listed
            if not states or each.state.value.lower() in states
        )
        return make(
            head,
            "ListGroupsResponse",
            throttle_time=NO_TIME,
            error_code=_error(error)["error_code"],
            groups=groups,
        )

    async def describe_classic(self, head: Head, request: Any, caller: Caller) -> Any:
        """Groups of Kafka's first protocol, of which there is none here: all are dead.

        Who may ask is not looked at: the answer is the same whatever there is.
        """
        del caller
        said: dict[str, Any] = {"error_code": ErrorCode.none}
        if head.version >= _DEAD_IS_ERROR:
            said = {
                "error_code": ErrorCode.group_id_not_found,
                "error_message": "this port has share groups alone, which are described as such",
            }
        groups = tuple(
            make(
                head,
                "DescribedGroup",
                **said,
                group_id=group_id,
                group_state=GroupState.DEAD.value,
                protocol_type="",
                protocol_data="",
                members=(),
                authorized_operations=NOT_ASKED,
            )
            for group_id in request.groups
        )
        return make(head, "DescribeGroupsResponse", throttle_time=NO_TIME, groups=groups)

    async def describe_groups(self, head: Head, request: Any, caller: Caller) -> Any:
        """Groups with their members; each is answered by itself."""
        views = await self._views(caller, request.group_ids, include_offsets=False)
        is_asked = request.include_authorized_operations
        groups = tuple(
            self._described(head, view, self._operations(caller, view) if is_asked else NOT_ASKED)
            for view in views
        )
        return make(head, "ShareGroupDescribeResponse", throttle_time=NO_TIME, groups=groups)

    async def _views(
        self, caller: Caller, group_ids: Sequence[str], **options: bool
    ) -> list[GroupView]:
        """Describes groups in the order asked for; an error of the whole call stands in each."""
        if not group_ids:
            # Without a name the command describes all.
            return []
        try:
            given = {"group_ids": group_ids, **options}
            views: list[GroupView] = await self._operators.call(caller, "describe_groups", given)
        except SharecoordError as error:
            return [GroupView(each, error=error) for each in group_ids]
        return views

    def _operations(self, caller: Caller, view: GroupView) -> int:
        """The operations that the caller may do with a group, as Kafka's tools show them."""
        if view.error is not None:
            return NOT_ASKED
        allowed = [
            name
            for action, names in _OPERATIONS.items()
            if self._operators.may(caller, action, view.group_id)
            for name in names
        ]
        return operations(*allowed)

    def _described(self, head: Head, view: GroupView, allowed: int) -> Any:
        is_there = view.error is None
        error = _error(view.error)
        if not view.group_id:
            error["error_code"] = ErrorCode.invalid_group_id
        return make(
            head,
            "DescribedGroup",
            **error,
            group_id=view.group_id,
            group_state=view.state.value if is_there else "",
            group_epoch=min(view.group_epoch, _INT32_MAX),
            assignment_epoch=min(view.group_epoch, _INT32_MAX),
            assignor_name=ASSIGNOR if is_there else "",
            members=tuple(self._member(head, each) for each in view.members),
            authorized_operations=allowed,
        )

    def _member(self, head: Head, member: MemberView) -> Any:
        topics = tuple(
            make(
                head,
                "TopicPartitions",
                topic_id=self._ids.known_id(topic),
                topic_name=topic,
                partitions=partitions,
            )
            for topic, partitions in sorted(member.assignment.items())
        )
        return make(
            head,
            "Member",
            member_id=member.member_id,
            rack_id=None,
            # In a fleet it begins with the clock in milliseconds.
            member_epoch=min(member.member_epoch, _INT32_MAX),
            client_id=member.client_id,
            # As brokers have it: the address without its port.
            client_host=f"/{_host(member.host)}",
            subscribed_topic_names=tuple(sorted(member.assignment)),
            assignment=make(head, "Assignment", topic_partitions=topics),
        )

    async def describe_offsets(self, head: Head, request: Any, caller: Caller) -> Any:
        """Start offsets and lags of groups; each is answered by itself."""
        asked = {each.group_id: each.topics for each in request.groups}
        views = await self._views(caller, list(asked), include_members=False)
        groups = tuple(self._offsets_of(head, view, asked[view.group_id]) for view in views)
        return make(head, "DescribeShareGroupOffsetsResponse", throttle_time=NO_TIME, groups=groups)

    def _offsets_of(self, head: Head, view: GroupView, topics: Iterable[Any] | None) -> Any:
        # As at a broker: of a group that does not exist nothing is known, which is no error.
        error = None if isinstance(view.error, GroupNotFoundError) else view.error
        known = {(each.topic, each.partition): each for each in view.partitions if not each.lane}
        for each in known.values():
            self._ids.id_of(each.topic, each.topic_id)
        if topics is None or error is not None:
            # Who may not see the group does not learn which of the topics there are either.
            wanted = sorted(known)
        else:
            wanted = sorted({(t.topic_name, number) for t in topics for number in t.partitions})
        return make(
            head,
            "DescribeShareGroupOffsetsResponseGroup",
            **_error(error),
            group_id=view.group_id,
            topics=tuple(
                make(
                    head,
                    "DescribeShareGroupOffsetsResponseTopic",
                    topic_name=topic,
                    topic_id=self._ids.known_id(topic),
                    partitions=tuple(_offset(head, place, known) for place in places),
                )
                for topic, places in groupby(wanted, key=lambda place: place[0])
            ),
        )

    async def alter_offsets(self, head: Head, request: Any, caller: Caller) -> Any:
        """Resets start offsets of a group without members; makes the group when it is new."""
        asked = [
            ((topic.topic_name, part.partition_index), part.start_offset)
            for topic in request.topics
            for part in topic.partitions
        ]
        offsets = {place: offset for place, offset in asked if offset >= 0}
        errors: dict[tuple[str, int], SharecoordError | None] = {
            place: InvalidRequestError(f"start_offset is {offset}; it must be 0 or more")
            for place, offset in asked
            if offset < 0
        }
        problem = None
        try:
            check_group_id(request.group_id)
            if offsets:
                to = ResetTo(ResetKind.OFFSETS, offsets=offsets)
                given = {"command": ResetCommand(request.group_id, to)}
                results = await self._operators.call(caller, "reset_offsets", given)
                errors |= {(each.topic, each.partition): each.error for each in results}
                for each in results:
                    if each.error is None:
                        self._ids.id_of(each.topic, each.topic_id)
        except SharecoordError as error:
            problem = error
        return make(
            head,
            "AlterShareGroupOffsetsResponse",
            throttle_time=NO_TIME,
            **_group_error(request.group_id, problem),
            responses=()
            if problem is not None
            else tuple(self._altered(head, topic, errors) for topic in request.topics),
        )

    def _altered(
        self, head: Head, topic: Any, errors: Mapping[tuple[str, int], SharecoordError | None]
    ) -> Any:
        return make(
            head,
            "AlterShareGroupOffsetsResponseTopic",
            topic_name=topic.topic_name,
            topic_id=self._ids.known_id(topic.topic_name),
            partitions=tuple(
                make(
                    head,
                    "AlterShareGroupOffsetsResponsePartition",
                    partition_index=part.partition_index,
                    **_error(errors.get((topic.topic_name, part.partition_index))),
                )
                for part in topic.partitions
            ),
        )

    async def delete_offsets(self, head: Head, request: Any, caller: Caller) -> Any:
        """Forgets what a group without members has of whole topics."""
        names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
        problem, results = None, dict[str, SharecoordError | None]()
        try:
            check_group_id(request.group_id)
            if names:
                given = {"group_id": request.group_id, "topics": names, "only_empty": True}
                results = await self._operators.call(caller, "delete_offsets", given)
            else:
                (view,) = await self._views(caller, [request.group_id], include_offsets=False)
                problem = view.error
        except SharecoordError as error:
            problem = error
        return make(
            head,
            "DeleteShareGroupOffsetsResponse",
            throttle_time=NO_TIME,
            **_group_error(request.group_id, problem),
            responses=tuple(
                make(
                    head,
                    "DeleteShareGroupOffsetsResponseTopic",
                    topic_name=topic,
                    topic_id=self._ids.known_id(topic),
                    **_error(error),
                )
                for topic, error in results.items()
            ),
        )

    async def delete_groups(self, head: Head, request: Any, caller: Caller) -> Any:
        """Deletes groups without members; each is answered by itself."""
        given = {"group_ids": request.groups_names}
        results: Mapping[str, SharecoordError | None]
        try:
            results = await self._operators.call(caller, "delete_groups", given)
        except SharecoordError as error:
            results = dict.fromkeys(request.groups_names, error)
        return make(
            head,
            "DeleteGroupsResponse",
            throttle_time=NO_TIME,
            results=tuple(
                make(
                    head,
                    "DeletableGroupResult",
                    group_id=group_id,
                    error_code=_error(error)["error_code"],
                )
                for group_id, error in results.items()
            ),
        )


def _offset(
    head: Head, place: tuple[str, int], known: Mapping[tuple[str, int], PartitionView]
) -> Any:
    """Start offset and lag of a share-partition; -1 where the group does not have it yet."""
    found = known.get(place)
    return make(
        head,
        "DescribeShareGroupOffsetsResponsePartition",
        partition_index=place[1],
        start_offset=NO_OFFSET if found is None else _known(found.start_offset),
        leader_epoch=0 if found is None or found.leader_epoch is None else found.leader_epoch,
        lag=NO_OFFSET if found is None else _known(found.lag),
        error_code=ErrorCode.none,
        error_message=None,
    )


def _host(address: str) -> str:
    host, _, port = address.rpartition(":")
    return host.strip("[]") if port.isdecimal() else address


def _known(number: int | None) -> int:
    return NO_OFFSET if number is None else number


def _error(error: SharecoordError | None) -> dict[str, Any]:
    code = ErrorCode.none if error is None else code_of(error)
    return {"error_code": code, "error_message": None if error is None else error.message}


def _group_error(group_id: str, error: SharecoordError | None) -> dict[str, Any]:
    """The error of a whole request; a name that no group has is one of its own for Kafka."""
    found = _error(error)
    if error is not None and not group_id:
        found["error_code"] = ErrorCode.invalid_group_id
    return found
