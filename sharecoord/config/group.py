"""Settings of a share group: Kafka's names and defaults, wider bounds, and what Kafka lacks.

A group's own values override the values that the coordinator's operator set for all groups, which
override the defaults. All are read at use time, so a change acts on the next acquire, release or
timer; the retry and dead-letter settings act on the next failure.
"""

# The fields are made by functions that return `dataclasses.field`: nothing mutable is shared.
# ruff: noqa: RUF009

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sharecoord.config import values
from sharecoord.config.setting import (
    SettingsTable,
    bool_setting,
    choice_setting,
    custom_setting,
    duration_setting,
    float_setting,
    int_setting,
    invalid_config,
    settings_of,
    size_setting,
    str_setting,
)
from sharecoord.errors import InvalidConfigError

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_GROUP_NAME_CHARACTERS_MAX: Final = 249
_BY_DURATION: Final = "by_duration:"
_DEFAULT_HEARTBEAT_MS: Final = 5_000


class GroupSource(StrEnum):
    """Where the value in force of a group's setting comes from."""

    GROUP = "group"
    COORDINATOR = "coordinator"
    DEFAULT = "default"


class IsolationLevel(StrEnum):
    """Whether records of open and aborted transactions are seen."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Ordering(StrEnum):
    """Which records of a group wait for earlier ones."""

    UNORDERED = "unordered"
    KEY = "key"
    PARTITION = "partition"


class ResetStrategy(StrEnum):
    """Where a group without a start offset begins."""

    LATEST = "latest"
    EARLIEST = "earliest"
    BY_DURATION = "by_duration"


@dataclass(frozen=True, slots=True)
class AutoOffsetReset:
    """The parsed `share.auto.offset.reset`."""

    strategy: ResetStrategy = ResetStrategy.LATEST
    duration_ms: int | None = None
    """For BY_DURATION how far back from now, else None."""

    def __str__(self) -> str:
        """The text that `parse_auto_offset_reset` reads back."""
        if self.duration_ms is None:
            return self.strategy.value
        return _BY_DURATION + values.format_iso_duration(self.duration_ms)


def parse_auto_offset_reset(text: str) -> AutoOffsetReset:
    """Reads `latest`, `earliest` or `by_duration:<ISO-8601 duration>`."""
    word = text.strip()
    if word.lower() in (ResetStrategy.LATEST, ResetStrategy.EARLIEST):
        return AutoOffsetReset(ResetStrategy(word.lower()))
    if word.lower().startswith(_BY_DURATION):
        try:
            duration_ms = values.parse_iso_duration_ms(word[len(_BY_DURATION) :])
        except ValueError as error:
            raise ValueError(f"{_BY_DURATION} followed by {error}") from None
        return AutoOffsetReset(ResetStrategy.BY_DURATION, duration_ms)
    raise ValueError(f"latest, earliest or {_BY_DURATION}PnDTnHnMn.nS")


def check_topic_name(text: str) -> str:
    """Returns the text if it is empty or a topic name that Kafka takes and does not reserve."""
    if text and not values.is_topic_name(text):
        raise ValueError(
            'a topic name (1 to 249 of a-z, A-Z, 0-9, ".", "_", "-"), or empty for off'
        )
    if text.startswith("__"):
        raise ValueError(
            'a topic name that does not begin with "__" (reserved for internal topics)'
        )
    return text


def check_export_group(text: str) -> str:
    """Returns the text if it is empty or a usable name of a consumer group."""
    if len(text) > _GROUP_NAME_CHARACTERS_MAX or not text.isprintable():
        raise ValueError(
            f"the name of a consumer group (at most {_GROUP_NAME_CHARACTERS_MAX} characters, none "
            "of them a control character), or empty for off"
        )
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Typed effective settings of one group; `GroupConfig()` has every default.

    Attributes:
        sources: Source of each setting by its name; absent = default.
    """

    auto_offset_reset: AutoOffsetReset = custom_setting(
        "share.auto.offset.reset",
        "Where the group begins on a partition that it has not read yet: `latest`, `earliest`, or "
        "`by_duration:` and an ISO-8601 duration back from now. Partitions that are added later "
        "always begin at offset 0.",
        default=AutoOffsetReset(),
        parser=parse_auto_offset_reset,
        renderer=str,
    )
    isolation_level: IsolationLevel = choice_setting(
        "share.isolation.level",
        "`read_committed` hides records of open and aborted transactions.",
        default=IsolationLevel.READ_UNCOMMITTED,
    )
    lock_duration_ms: int = duration_setting(
        "share.record.lock.duration.ms",
        "How long a delivered record is locked for its consumer. When the time is over without an "
        "answer or a renewal, the record is due again and the delivery counts.",
        default_ms=30_000,
        bounds_ms=(1_000, 12 * _HOUR_MS),
    )
    session_timeout_ms: int = duration_setting(
        "share.session.timeout.ms",
        "How long a member may be silent before its locks are released.",
        default_ms=45_000,
        bounds_ms=(1_000, 12 * _HOUR_MS),
    )
    heartbeat_interval_ms: int = duration_setting(
        "share.heartbeat.interval.ms",
        "How often members of the unary API report. Streams need no heartbeat. While it is not "
        "set, it is at most a third of the session timeout.",
        default_ms=_DEFAULT_HEARTBEAT_MS,
        bounds_ms=(100, _HOUR_MS),
    )
    delivery_count_limit: int = int_setting(
        "share.delivery.count.limit",
        "How often a record is delivered before it is archived as failed.",
        default=5,
        bounds=(1, 1_000),
        unit="deliveries",
    )
    max_record_locks: int = int_setting(
        "share.partition.max.record.locks",
        "How many records of a partition may be locked or due again at once. While it is not set, "
        "it grows with the members and with their speed.",
        default=2_000,
        bounds=(100, 100_000),
        unit="records",
    )
    max_window_ranges: int = int_setting(
        "share.partition.max.window.ranges",
        "How many ranges of equal state a partition may hold in memory. At the limit it reads no "
        "new data, goes on redelivering, and reports the offset that blocks it.",
        default=100_000,
        bounds=(1_000, 1_000_000),
        unit="ranges",
    )
    renew_acknowledge_enable: bool = bool_setting(
        "share.renew.acknowledge.enable",
        "Whether consumers may renew the lock of a record.",
        default=True,
    )
    ack_outbox: bool = bool_setting(
        "share.ack.outbox",
        "Whether acknowledgements may come out of an outbox: for a member that may be gone, by the "
        "lock tokens that it wrote down in a transaction of its own "
        "(`sharecoord_sdk.contrib.sqlalchemy`).",
        default=False,
    )
    assignment_interval_ms: int = duration_setting(
        "share.assignment.interval.ms",
        "Accepted for Kafka's tools. Every member may receive from every partition here, so there "
        "is no assignment to wait for.",
        default_ms=1_000,
        bounds_ms=(0, _HOUR_MS),
    )
    group_max_size: int = int_setting(
        "share.group.max.size",
        "How many members the group may have.",
        default=100_000,
        bounds=(1, 1_000_000),
        unit="members",
    )
    ordering: Ordering = choice_setting(
        "share.ordering",
        "`unordered`, or `key`: a record waits until every earlier record of its key is finished, "
        "or `partition`: until every earlier record of its partition is.",
        default=Ordering.UNORDERED,
    )
    retry_backoff_ms: int = duration_setting(
        "share.retry.backoff.ms",
        "How long a record that failed once waits before it is due again; 0 = not at all.",
        default_ms=0,
        bounds_ms=(0, 7 * _DAY_MS),
    )
    retry_backoff_max_ms: int = duration_setting(
        "share.retry.backoff.max.ms",
        "The longest wait between two deliveries that back-off may reach.",
        default_ms=300_000,
        bounds_ms=(0, 30 * _DAY_MS),
    )
    retry_backoff_multiplier: float = float_setting(
        "share.retry.backoff.multiplier",
        "By how much each further failure of a record lengthens its wait.",
        default=2.0,
        bounds=(1.0, 100.0),
    )
    retry_backoff_jitter: float = float_setting(
        "share.retry.backoff.jitter",
        "Which part of a wait is random, so that records that failed together do not come back "
        "together; 0.2 = up to 20 % shorter or longer.",
        default=0.2,
        bounds=(0.0, 1.0),
    )
    scheduled_delivery: bool = bool_setting(
        "share.scheduled.delivery",
        "Whether new records wait for the moment that their headers `sharecoord-deliver-at` and "
        "`sharecoord-delay-ms` name. A group whose producers never set them saves the look into "
        "every record; to members that open record batches compressed ones then go unopened.",
        default=True,
    )
    retry_keep_payload: bool = bool_setting(
        "share.retry.keep.payload",
        "Whether the payload of delayed records is stored, so that a redelivery does not depend on "
        "the topic's retention.",
        default=False,
    )
    retry_kept_max_bytes: int = size_setting(
        "share.retry.keep.payload.max.bytes",
        "How many bytes of such payloads a group may have stored in one coordinator, with 256 more "
        "for each. At the limit further records wait as well, but without their payload, which is "
        "counted (`sharecoord_payloads_not_kept_total`).",
        default_bytes=256 * _MIB,
        bounds_bytes=(_MIB, 1 << 40),
    )
    checkpoint_max_bytes: int = size_setting(
        "share.checkpoint.max.bytes",
        "The largest checkpoint that a worker may store with a record; 0 = none. What is stored "
        "already stays.",
        default_bytes=64 * _KIB,
        bounds_bytes=(0, 64 * _KIB),
    )
    checkpoints_max_bytes: int = size_setting(
        "share.checkpoint.total.max.bytes",
        "How many bytes of checkpoints the unfinished records of a group may have in one "
        "coordinator, with 256 more for each; they are in memory, too (`memory.limit`). At the "
        "limit a further checkpoint is refused.",
        default_bytes=64 * _MIB,
        bounds_bytes=(_MIB, 1 << 40),
    )
    offsets_export_group: str = str_setting(
        "share.offsets.export.group",
        "Name of a consumer group under which an offset is committed to Kafka that gives the right "
        "lag to other tools; empty = off. Each share group needs a name of its own: `sharecoord.` "
        "and the group's name is a good choice. Refused while the name has members, offsets of "
        "others, or belongs to a group of another type. What was committed stays when the setting "
        "is removed. Never used to resume.",
        check=check_export_group,
    )
    dlq_topic_name: str = str_setting(
        "errors.deadletterqueue.topic.name",
        "Topic that receives rejected and worn-out records; empty = off.",
        check=check_topic_name,
    )
    dlq_copy_record_enable: bool = bool_setting(
        "errors.deadletterqueue.copy.record.enable",
        "Whether key, value and headers go to the dead-letter topic, so that a redrive can deliver "
        "them again; false = only the headers that say where the record is. Kafka's default is "
        "false.",
        default=True,
    )
    dlq_auto_create: bool = bool_setting(
        "errors.deadletterqueue.auto.create.topics.enable",
        "Whether the dead-letter topic is made when it is missing, with the broker's number of "
        "partitions and replicas. Kafka has this for the whole cluster: set it for all groups with "
        "the coordinator's `group.` settings.",
        default=False,
    )
    dlq_exactly_once: bool = bool_setting(
        "errors.deadletterqueue.exactly.once",
        "Whether dead letters are produced in transactions, so that there are no duplicates; false "
        "= at least once, duplicates carry the same id.",
        default=False,
    )
    dlq_outbox_max_bytes: int = size_setting(
        "errors.deadletterqueue.outbox.max.bytes",
        "How many bytes of dead letters may wait for Kafka. At the limit the group acquires "
        "nothing more, and an alert says so.",
        default_bytes=64 * _MIB,
        bounds_bytes=(_MIB, 1 << 40),
    )
    dlq_flood_ratio: float = float_setting(
        "errors.deadletterqueue.flood.ratio",
        "The group is paused when more than this share of the records that were finished in a "
        "window became dead letters, until an operator resumes it; 0 = never. In a fleet each "
        "coordinator judges by the partitions that it serves, and all of them stop.",
        default=0.0,
        bounds=(0.0, 1.0),
    )
    dlq_flood_window_ms: int = duration_setting(
        "errors.deadletterqueue.flood.window.ms",
        "Length of that window, which moves along.",
        default_ms=60_000,
        bounds_ms=(1_000, _HOUR_MS),
    )
    dlq_flood_min_records: int = int_setting(
        "errors.deadletterqueue.flood.min.records",
        "So many records must have been finished in the window before its share says anything.",
        default=100,
        bounds=(1, 1_000_000),
        unit="records",
    )
    sources: Mapping[str, GroupSource] = dataclasses.field(default_factory=dict, hash=False)

    def source(self, name: str) -> GroupSource:
        """Where the value of the setting with this name comes from."""
        return self.sources.get(name, GroupSource.DEFAULT)

    @property
    def max_record_locks_explicit(self) -> bool:
        """Whether somebody set `share.partition.max.record.locks`: then it does not grow."""
        return self.source("share.partition.max.record.locks") is not GroupSource.DEFAULT

    def entries(self) -> tuple[GroupConfigEntry, ...]:
        """Every setting with its value as text, its source and its meaning, in order."""
        return tuple(
            GroupConfigEntry(
                name=setting.name,
                value=setting.render(getattr(self, field)),
                source=self.source(setting.name),
                documentation=setting.meaning,
            )
            for field, setting in settings_of(GroupConfig).items()
        )


class GroupConfigEntry(NamedTuple):
    """A setting of a group as `configs --describe` shows it."""

    name: str
    value: str
    source: GroupSource
    documentation: str
    problem: str = ""
    """Why a stored value of the setting is not in force; "" = every stored value is."""
    hidden: tuple[tuple[GroupSource, str], ...] = ()
    """What it would be without that value, and without the next one, in this order."""


GROUP_SETTINGS: Final = SettingsTable(settings_of(GroupConfig).values())


def hidden_below(
    source: GroupSource, name: str, coordinator_defaults: Mapping[str, str]
) -> tuple[tuple[GroupSource, str], ...]:
    """The values of a known setting that the one of this source hides, as text."""
    setting = GROUP_SETTINGS[name]
    found: list[tuple[GroupSource, str]] = []
    if source is GroupSource.GROUP and name in coordinator_defaults:
        shared = setting.render(setting.parse(coordinator_defaults[name]))
        found.append((GroupSource.COORDINATOR, shared))
    if source is not GroupSource.DEFAULT:
        found.append((GroupSource.DEFAULT, setting.render(setting.default)))
    return tuple(found)


def resolve(
    overrides: Mapping[str, str], coordinator_defaults: Mapping[str, str] | None = None
) -> GroupConfig:
    """Builds the effective settings of a group, typed, with their sources.

    Args:
        overrides: The group's own values as text, by setting name.
        coordinator_defaults: The operator's values for all groups, likewise.

    Raises:
        InvalidConfigError: An unknown name, a bad value, or two values that contradict each other.
    """
    layers = ((GroupSource.COORDINATOR, coordinator_defaults or {}), (GroupSource.GROUP, overrides))
    parsed: dict[str, Any] = {}
    sources: dict[str, GroupSource] = {}
    for source, mapping in layers:
        for name, text in mapping.items():
            where = "defaults for all groups" if source is GroupSource.COORDINATOR else ""
            parsed[name] = GROUP_SETTINGS.find(name, where=where).parse(text, where=where)
            sources[name] = source
    fields = {
        field: parsed[setting.name]
        for field, setting in settings_of(GroupConfig).items()
        if setting.name in parsed
    }
    config = GroupConfig(**fields, sources=sources)
    if "share.heartbeat.interval.ms" not in sources:
        # Nobody who shortens the session timeout should have to know this accepted setting.
        fitting_ms = max(100, min(_DEFAULT_HEARTBEAT_MS, config.session_timeout_ms // 3))
        config = dataclasses.replace(config, heartbeat_interval_ms=fitting_ms)
    _check_together(config)
    return config


class UnusedSetting(NamedTuple):
    """A stored value of a group's setting that can not be used, so that it is not in force."""

    name: str
    value: str
    source: GroupSource
    """GROUP for the group's own value, COORDINATOR for the value for all groups."""
    why: str
    """The problem and its fix, as one sentence or two."""


GUARANTEES: Final = frozenset(
    {"share.ordering", "share.isolation.level", "errors.deadletterqueue.topic.name"}
)
"""Settings without which records would come in another order, too early, or be lost: a group of
which this release can not read one of these is not served."""


def resolve_stored(
    overrides: Mapping[str, str], coordinator_defaults: Mapping[str, str] | None = None
) -> tuple[GroupConfig, tuple[UnusedSetting, ...]]:
    """The effective settings of a group whose stored ones may not fit (any more).

    Stored values were checked once; since then a default was changed, or another release knows
    other names and bounds. A value that can not be used is left out, one at a time: of two that
    contradict each other the one for all groups, so that the group goes on as before.

    Returns:
        As `resolve`, and the values that are left out.

    Raises:
        InvalidConfigError: The defaults for all groups are bad by themselves.
    """
    own, shared = dict(overrides), dict(coordinator_defaults or {})
    unused: list[UnusedSetting] = []
    while True:
        try:
            return resolve(own, shared), tuple(unused)
        except InvalidConfigError as error:
            found = _left_out(error, own, shared)
            if found is None:
                raise
            (own if found.source is GroupSource.GROUP else shared).pop(found.name)
            unused.append(found)


def _left_out(
    error: InvalidConfigError, own: Mapping[str, str], shared: Mapping[str, str]
) -> UnusedSetting | None:
    """The stored value that an error is about; None = the error is about no stored value."""
    names = [error.metadata[key] for key in ("key", "against") if key in error.metadata]
    for name in names:
        if name in shared and name not in own:
            return UnusedSetting(name, shared[name], GroupSource.COORDINATOR, error.message)
    for name in names:
        if name in own:
            return UnusedSetting(name, own[name], GroupSource.GROUP, error.message)
    return None


def validate_group_overrides(
    overrides: Mapping[str, str], coordinator_defaults: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Checks a group's own values, alone and together with the operator's, before they are stored.

    Returns:
        The same settings in canonical text to be stored (`30s` becomes `30000`).

    Raises:
        InvalidConfigError: As `resolve`.
    """
    config = resolve(overrides, coordinator_defaults)
    return {
        setting.name: setting.render(getattr(config, field))
        for field, setting in settings_of(GroupConfig).items()
        if setting.name in overrides
    }


def _check_together(config: GroupConfig) -> None:
    """Refuses values that are legal alone and contradict each other."""
    if config.session_timeout_ms <= config.heartbeat_interval_ms:
        raise invalid_config(
            "share.session.timeout.ms",
            str(config.session_timeout_ms),
            "it must be longer than share.heartbeat.interval.ms, which is "
            f"{config.heartbeat_interval_ms}",
            fix="Raise the timeout or shorten the interval",
            against="share.heartbeat.interval.ms",
        )
    if config.retry_backoff_max_ms < config.retry_backoff_ms:
        raise invalid_config(
            "share.retry.backoff.max.ms",
            str(config.retry_backoff_max_ms),
            f"it must be at least share.retry.backoff.ms, which is {config.retry_backoff_ms}",
            fix="Raise it or shorten the first wait",
            against="share.retry.backoff.ms",
        )
    if config.max_record_locks_explicit and config.max_window_ranges < config.max_record_locks:
        raise invalid_config(
            "share.partition.max.window.ranges",
            str(config.max_window_ranges),
            "it must be at least share.partition.max.record.locks, which is "
            f"{config.max_record_locks}: each locked record can be a range of its own",
            fix="Raise it or lower the locks",
            against="share.partition.max.record.locks",
        )
