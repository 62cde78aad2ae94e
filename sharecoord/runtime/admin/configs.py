"""Describes and alters the settings of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sharecoord.config.group import (
    GROUP_SETTINGS,
    GroupConfig,
    GroupConfigEntry,
    hidden_below,
    resolve,
    validate_group_overrides,
)
from sharecoord.errors import InvalidConfigError, InvalidRequestError
from sharecoord.eventlog.schema import GroupEvent
from sharecoord.runtime.admin.group_access import GroupAccess
from sharecoord.runtime.admin.keys import refuse_while_blocked
from sharecoord.runtime.group.events import tell


class ConfigChange(NamedTuple):
    """Values in force of the settings that a command has named, as text.

    A deleted setting that this release does not know has none afterwards.
    """

    before: Mapping[str, str]
    after: Mapping[str, str]


class ConfigCommands(GroupAccess):
    """The commands about the settings of groups."""

    async def describe_group_configs(self, group_id: str) -> tuple[GroupConfigEntry, ...]:
        """The settings of a group with their source; also of one that does not exist yet.

        Stored settings that this release does not know come last.
        """
        groups, _ = await self._load()
        config, unused = self._resolved(groups.get(group_id))
        problems = {each.name: each for each in unused}
        entries = [
            entry._replace(
                problem=problems.pop(entry.name).why if entry.name in problems else "",
                hidden=hidden_below(entry.source, entry.name, self._context.group_defaults),
            )
            for entry in config.entries()
        ]
        entries += [
            GroupConfigEntry(each.name, each.value, each.source, "", each.why)
            for each in problems.values()
        ]
        return tuple(entries)

    async def alter_group_configs(
        self,
        group_id: str,
        set_values: Mapping[str, str],
        deleted: Sequence[str],
        *,
        validate_only: bool = False,
    ) -> ConfigChange:
        """Sets and deletes settings of a group, all or nothing; makes the group when it is new.

        Returns the values in force before and afterwards; with `validate_only` what they would be.

        Raises:
            InvalidConfigError: A name or a value is bad, or the settings contradict each other.
            InvalidRequestError: A name stands in both lists.
            LimitExceededError: The group is new, and there are as many as there may be.
        """
        both = sorted(set(set_values) & set(deleted))
        if both:
            raise InvalidRequestError(f"{both[0]} is set and deleted at once; do one of both")
        return await self._to_the_end(
            self._alter(group_id, set_values, deleted, validate_only=validate_only)
        )

    async def _alter(
        self,
        group_id: str,
        set_values: Mapping[str, str],
        deleted: Sequence[str],
        *,
        validate_only: bool,
    ) -> ConfigChange:
        async with self._altering:
            groups, _ = await self._load()
            row = groups.get(group_id)
            config = {} if row is None else dict(row.config)
            in_force = self._config(row)
            names = [*set_values, *deleted]
            before = {name: config[name] for name in names if name in config}
            before |= _named(in_force, names)
            for name in deleted:
                if name not in config:
                    # A setting that another release has stored may be deleted.
                    GROUP_SETTINGS.find(name)
            config = {name: text for name, text in config.items() if name not in deleted}
            checked = validate_group_overrides(
                config | dict(set_values), self._context.group_defaults
            )
            wanted = resolve(checked, self._context.group_defaults)
            refuse_while_blocked(row, wanted)
            if wanted.ordering is not in_force.ordering:
                await self._coordinator.lanes.check_reordering(group_id, wanted)
            if "errors.deadletterqueue.topic.name" in set_values:
                await self._check_dead_letters(group_id, checked)
            self._coordinator.groups.check_room(group_id)
            change = ConfigChange(before, _named(wanted, names))
            if validate_only:
                return change
            try:
                await self._context.caller.call(
                    self._context.store.save_group_config,
                    group_id,
                    set_values={name: checked[name] for name in set_values},
                    deleted=list(deleted),
                )
                changed = [f"{name}={checked[name]}" for name in set_values]
                changed += [f"{name} deleted" for name in deleted]
                said = ", ".join(changed)
                tell(self._context, group_id, GroupEvent.CONFIGURED, reason=said)
                return change
            finally:
                # Also after an error: the stored settings are those in force.
                await self._refresh(group_id)

    async def _check_dead_letters(self, group_id: str, checked: Mapping[str, str]) -> None:
        """Refuses a dead-letter topic that surely does not take the group's letters."""
        config = resolve(checked, self._context.group_defaults)
        topic = config.dlq_topic_name
        if not topic:
            return
        if any(row.key.topic == topic for row in await self._log_rows(group_id)):
            raise InvalidConfigError(
                f"errors.deadletterqueue.topic.name={topic}: the group reads this topic itself, "
                "its dead letters would come back for ever; name another topic",
                metadata={"key": "errors.deadletterqueue.topic.name", "value": topic},
            )
        await self._context.dead_letters.ensure(topic, create=config.dlq_auto_create)


def _named(config: GroupConfig, names: Iterable[str]) -> dict[str, str]:
    """The values of these settings, as text."""
    wanted = frozenset(names)
    return {entry.name: entry.value for entry in config.entries() if entry.name in wanted}
