"""Settings of groups, as `kafka-configs --entity-type groups` shows and alters them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.checks import check_group_id
from sharecoord.api.kafka.cluster import NO_TIME
from sharecoord.api.kafka.codec import Head, make
from sharecoord.api.kafka.errors import code_of
from sharecoord.config.group import GROUP_SETTINGS, GroupConfigEntry, GroupSource
from sharecoord.config.setting import Kind, Setting
from sharecoord.errors import InvalidConfigError, InvalidRequestError, SharecoordError
from sharecoord.runtime.admin.operators import Operators
from sharecoord.security.principals import Caller

GROUP: Final = 32
"""The type of resources that are groups (Kafka's ConfigResource)."""

RESOURCES_MAX: Final = 1_000
"""Most resources of one request: each is a call of its own."""

_OTHERS: Final = {2: "topics", 4: "brokers", 8: "broker loggers", 16: "client metrics"}
"""Types of resources whose settings Kafka itself has."""

SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations on a setting."""

_OPERATIONS: Final = {APPEND: "appended to", SUBTRACT: "subtracted from"}

_SOURCES: Final = {GroupSource.GROUP: 8, GroupSource.COORDINATOR: 4, GroupSource.DEFAULT: 5}
"""Kafka's numbers: DYNAMIC_GROUP_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG."""

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE = 1, 2, 3, 5, 6
_TYPES: Final = {Kind.BOOL: _BOOLEAN, Kind.FLOAT: _DOUBLE}
"""Kafka's numbers of the types of values; numbers go by their bounds, all else is text."""

_BY_GROUP_ALONE: Final = frozenset(
    {"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"}
)
"""Settings that a broker has for groups alone: their default has the same name."""


class Configs:
    """Answers who asks for settings, as `security.rules.file` lets them."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    # -- DescribeConfigs -------------------------------------------------------------------------

    async def describe(self, head: Head, request: Any, caller: Caller) -> Any:
        """The settings of groups, also of such that do not exist; each is answered by itself."""
        results = [await self._described(head, each, request, caller) for each in request.resources]
        return make(head, "DescribeConfigsResponse", throttle_time=NO_TIME, results=tuple(results))

    async def _described(self, head: Head, resource: Any, request: Any, caller: Caller) -> Any:
        said: dict[str, Any] = {"error_code": ErrorCode.none, "error_message": ""}
        entries: Sequence[GroupConfigEntry] = ()
        try:
            _check_resource(resource, request.resources)
            given = {"group_id": resource.resource_name}
            entries = await self._operators.call(caller, "describe_group_configs", given)
        except SharecoordError as error:
            said = {"error_code": code_of(error), "error_message": error.message}
        wanted = frozenset(resource.configuration_keys or ())
        return make(
            head,
            "DescribeConfigsResult",
            **said,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(
                _entry(head, entry, request)
                for entry in entries
                if not wanted or entry.name in wanted
            ),
        )

    # -- IncrementalAlterConfigs -----------------------------------------------------------------

    async def alter(self, head: Head, request: Any, caller: Caller) -> Any:
        """Alters the settings of groups; each group is changed as a whole or not at all."""
        times = Counter((each.resource_type, each.resource_name) for each in request.resources)
        answers = []
        for each in request.resources:
            said: dict[str, Any] = {"error_code": ErrorCode.none, "error_message": None}
            try:
                if times[each.resource_type, each.resource_name] > 1:
                    raise InvalidRequestError("a resource stands in the request twice")
                _check_resource(each, request.resources)
                await self._alter(each, caller, validate_only=request.validate_only)
            except SharecoordError as error:
                said = {"error_code": code_of(error), "error_message": error.message}
            answers.append(
                make(
                    head,
                    "AlterConfigsResourceResponse",
                    **said,
                    resource_type=each.resource_type,
                    resource_name=each.resource_name,
                )
            )
        return make(
            head,
            "IncrementalAlterConfigsResponse",
            throttle_time=NO_TIME,
            responses=tuple(answers),
        )

    async def _alter(self, resource: Any, caller: Caller, *, validate_only: bool) -> None:
        group_id = resource.resource_name
        set_values, deleted = _changes(resource.configs)
        if strange := [name for name in deleted if name not in GROUP_SETTINGS]:
            # As at a broker: what is not there may be deleted.
            given = {"group_id": group_id}
            entries = await self._operators.call(caller, "describe_group_configs", given)
            stored = {entry.name for entry in entries}
            deleted = [name for name in deleted if name not in strange or name in stored]
        changes_nothing = not set_values and not deleted
        await self._operators.call(
            caller,
            "alter_group_configs",
            {
                "group_id": group_id,
                "set_values": set_values,
                "deleted": deleted,
                # A group is not made for nothing.
                "validate_only": validate_only or changes_nothing,
            },
        )

    # -- ListConfigResources ---------------------------------------------------------------------

    async def list_resources(self, head: Head, request: Any, caller: Caller) -> Any:
        """The groups that have settings of their own. Version 0 asks for client metrics alone."""
        types = getattr(request, "resource_types", (16,))
        error, groups = ErrorCode.none, []
        if not set(types) <= {GROUP, *_OTHERS}:
            error = ErrorCode.unsupported_version
        elif not types or GROUP in types:
            try:
                groups = await self._operators.call(caller, "list_groups", {})
            except SharecoordError as problem:
                error = code_of(problem)
        kind = "ConfigResource"
        return make(
            head,
            "ListConfigResourcesResponse",
            throttle_time=NO_TIME,
            error_code=error,
            config_resources=tuple(
                make(head, kind, resource_name=each.group_id, resource_type=GROUP)
                for each in groups
                if each.has_settings
            ),
        )


def _check_resource(resource: Any, resources: Sequence[Any]) -> None:
    """Refuses what is no group, and one of too many."""
    if len(resources) > RESOURCES_MAX:
        raise InvalidRequestError(
            f"the request has {len(resources)} resources; {RESOURCES_MAX} are the most"
        )
    if (kind := resource.resource_type) != GROUP:
        what = _OTHERS.get(kind, f"resource type {kind}")
        raise InvalidRequestError(
            f"this port has settings of groups alone, none of {what}; connect to Kafka itself"
        )
    check_group_id(resource.resource_name, "resource_name")


def _changes(configs: Iterable[Any]) -> tuple[dict[str, str], list[str]]:
    """The settings that are set, and those that are deleted.

    Raises:
        InvalidConfigError: Something else than a list is appended to, or subtracted from.
        InvalidRequestError: A setting stands there twice, without a value, or with an operation
            that Kafka does not have.
    """
    set_values: dict[str, str] = {}
    deleted: list[str] = []
    for each in configs:
        name, operation = each.name, each.config_operation
        if name in set_values or name in deleted:
            raise InvalidRequestError(f"{name} stands in the request twice")
        if operation in _OPERATIONS:
            raise InvalidConfigError(
                f"{name} is no list: nothing can be {_OPERATIONS[operation]} it; set it instead"
            )
        if operation == DELETE:
            deleted.append(name)
        elif operation == SET and each.value is not None:
            set_values[name] = each.value
        elif operation == SET:
            raise InvalidRequestError(f"{name} has no value; delete it instead")
        else:
            raise InvalidRequestError(f"{name}: operation {operation} is none of 0 to 3")
    return set_values, deleted


def _entry(head: Head, entry: GroupConfigEntry, request: Any) -> Any:
    """A setting by the names of Kafka's fields; none is read only or a secret."""
    synonyms = [
        make(head, "DescribeConfigsSynonym", name=name, value=value, source=source)
        for name, value, source in _synonyms(entry)
        if request.include_synonyms
    ]
    is_told = getattr(request, "include_documentation", False)
    return make(
        head,
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=False,
        config_source=_SOURCES[entry.source],
        is_sensitive=False,
        synonyms=tuple(synonyms),
        config_type=_type_of(GROUP_SETTINGS.get(entry.name)),
        documentation=(entry.problem or entry.documentation) if is_told else None,
    )


def _synonyms(entry: GroupConfigEntry) -> Iterator[tuple[str, str, int]]:
    """The value in force and those that it hides; settings for all groups begin with `group.`."""
    for source, value in ((entry.source, entry.value), *entry.hidden):
        is_own = source is GroupSource.GROUP or (
            source is GroupSource.DEFAULT and entry.name in _BY_GROUP_ALONE
        )
        yield entry.name if is_own else f"group.{entry.name}", value, _SOURCES[source]


def _type_of(setting: Setting | None) -> int:
    if setting is None:
        # Of another release.
        return _STRING
    if setting.bounds is None or setting.kind in _TYPES:
        return _TYPES.get(setting.kind, _STRING)
    return _INT if setting.bounds[1] < 2**31 else _LONG
