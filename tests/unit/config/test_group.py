"""Settings of a share group."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.config.group import (
    GROUP_SETTINGS,
    AutoOffsetReset,
    GroupConfig,
    GroupSource,
    IsolationLevel,
    Ordering,
    ResetStrategy,
    check_export_group,
    check_topic_name,
    parse_auto_offset_reset,
    resolve,
    validate_group_overrides,
)
from sharecoord.errors import InvalidConfigError

KAFKA_DEFAULTS = {
    "share.auto.offset.reset": "latest",
    "share.isolation.level": "read_uncommitted",
    "share.record.lock.duration.ms": "30000",
    "share.session.timeout.ms": "45000",
    "share.heartbeat.interval.ms": "5000",
    "share.delivery.count.limit": "5",
    "share.partition.max.record.locks": "2000",
    "share.renew.acknowledge.enable": "true",
    "share.assignment.interval.ms": "1000",
    "errors.deadletterqueue.topic.name": "",
}


def test_without_settings_the_defaults_are_kafkas() -> None:
    config = resolve({}, {})
    assert config == GroupConfig()
    values = {entry.name: entry.value for entry in config.entries()}
    assert KAFKA_DEFAULTS.items() <= values.items()
    assert {entry.source for entry in config.entries()} == {GroupSource.DEFAULT}


@pytest.mark.parametrize("setting", GROUP_SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_default_is_legal_and_described(setting) -> None:  # type: ignore[no-untyped-def]
    assert setting.parse(setting.render(setting.default)) == setting.default
    assert setting.meaning.endswith(".")


def test_the_groups_value_wins_over_the_coordinators() -> None:
    config = resolve(
        {"share.delivery.count.limit": "7"},
        {"share.delivery.count.limit": "9", "share.ordering": "key"},
    )
    assert (config.delivery_count_limit, config.ordering) == (7, Ordering.KEY)
    assert config.source("share.delivery.count.limit") is GroupSource.GROUP
    assert config.source("share.ordering") is GroupSource.COORDINATOR
    assert config.source("share.isolation.level") is GroupSource.DEFAULT


def test_all_values_are_typed() -> None:
    config = resolve(
        {
            "share.auto.offset.reset": "by_duration:P1DT2H",
            "share.isolation.level": "READ_COMMITTED",
            "share.record.lock.duration.ms": "12h",
            "share.retry.backoff.ms": "1s",
            "share.retry.backoff.max.ms": "10m",
            "share.retry.backoff.multiplier": "1.5",
            "share.retry.backoff.jitter": "0",
            "share.retry.keep.payload": "true",
            "share.offsets.export.group": "sharecoord.g",
            "share.group.max.size": "10",
            "errors.deadletterqueue.topic.name": "dlq.orders",
            "errors.deadletterqueue.copy.record.enable": "false",
            "errors.deadletterqueue.exactly.once": "true",
            "errors.deadletterqueue.outbox.max.bytes": "2MiB",
        },
        {},
    )
    assert config.auto_offset_reset == AutoOffsetReset(ResetStrategy.BY_DURATION, 93_600_000)
    assert config.isolation_level is IsolationLevel.READ_COMMITTED
    assert config.lock_duration_ms == 43_200_000
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms) == (1_000, 600_000)
    assert (config.retry_backoff_multiplier, config.retry_backoff_jitter) == (1.5, 0.0)
    assert config.retry_keep_payload
    assert config.offsets_export_group == "sharecoord.g"
    assert config.group_max_size == 10
    assert config.dlq_topic_name == "dlq.orders"
    assert not config.dlq_copy_record_enable
    assert config.dlq_exactly_once
    assert config.dlq_outbox_max_bytes == 2_097_152


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("share.record.lock.duration.ms", 1_000, 43_200_000),
        ("share.delivery.count.limit", 1, 1_000),
        ("share.partition.max.record.locks", 100, 100_000),
    ],
)
def test_bounds_are_those_of_the_design(name: str, low: int, high: int) -> None:
    resolve({name: str(low)})
    resolve({name: str(high)})
    for outside in (low - 1, high + 1):
        with pytest.raises(InvalidConfigError, match=f'^{name}="{outside}" is not valid'):
            resolve({name: str(outside)})


def test_record_locks_know_whether_they_were_given() -> None:
    name = "share.partition.max.record.locks"
    assert not resolve({}).max_record_locks_explicit
    assert resolve({name: "2000"}).max_record_locks_explicit
    assert resolve({}, {name: "2000"}).max_record_locks_explicit


@pytest.mark.parametrize(
    ("overrides", "culprit", "other"),
    [
        (
            {"share.session.timeout.ms": "5000", "share.heartbeat.interval.ms": "5000"},
            "share.session.timeout.ms",
            "share.heartbeat.interval.ms",
        ),
        (
            {"share.retry.backoff.ms": "10m"},
            "share.retry.backoff.max.ms",
            "share.retry.backoff.ms",
        ),
        (
            {
                "share.partition.max.window.ranges": "1000",
                "share.partition.max.record.locks": "1001",
            },
            "share.partition.max.window.ranges",
            "share.partition.max.record.locks",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    overrides: dict[str, str], culprit: str, other: str
) -> None:
    with pytest.raises(InvalidConfigError, match=f"^{culprit}=.*{other}"):
        validate_group_overrides(overrides)


def test_a_contradiction_with_the_coordinators_value_is_seen() -> None:
    with pytest.raises(InvalidConfigError, match=r"heartbeat\.interval\.ms, which is 20000"):
        validate_group_overrides(
            {"share.session.timeout.ms": "10s"}, {"share.heartbeat.interval.ms": "20s"}
        )


def test_a_short_session_needs_no_heartbeat_setting() -> None:
    config = resolve({"share.session.timeout.ms": "1500"})
    assert config.heartbeat_interval_ms == 500
    assert config.source("share.heartbeat.interval.ms") is GroupSource.DEFAULT


def test_small_window_ranges_go_with_locks_that_grow_by_themselves() -> None:
    assert resolve({"share.partition.max.window.ranges": "1000"}).max_window_ranges == 1_000


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(InvalidConfigError, match=r'"share\.record\.lock\.duration\.ms"\?'):
        resolve({"share.record.lock.duration": "1"})
    with pytest.raises(InvalidConfigError, match=r"^defaults for all groups: unknown setting"):
        resolve({}, {"share.odering": "key"})


def test_what_is_stored_is_canonical_and_only_what_was_given() -> None:
    given_texts = {
        "share.record.lock.duration.ms": "1m",
        "share.ordering": "KEY",
        "share.auto.offset.reset": "by_duration:pt90m",
    }
    stored = validate_group_overrides(given_texts, {"share.delivery.count.limit": "9"})
    assert stored == {
        "share.record.lock.duration.ms": "60000",
        "share.ordering": "key",
        "share.auto.offset.reset": "by_duration:PT1H30M",
    }
    assert resolve(stored) == resolve(given_texts)


@pytest.mark.parametrize("text", ["none", "", "by_duration", "by_duration:", "by_duration:-PT1S"])
def test_bad_reset_strategies_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"^share\.auto\.offset\.reset="):
        resolve({"share.auto.offset.reset": text})


@given(st.integers(min_value=0, max_value=10**14))
def test_a_duration_to_begin_at_reads_back(duration_ms: int) -> None:
    reset = AutoOffsetReset(ResetStrategy.BY_DURATION, duration_ms)
    assert parse_auto_offset_reset(str(reset)) == reset


@pytest.mark.parametrize("name", ["__consumer_offsets", ".", "..", "a b", "ä", "x" * 250])
def test_bad_topic_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a topic name"):
        check_topic_name(name)
    with pytest.raises(InvalidConfigError, match="deadletterqueue"):
        resolve({"errors.deadletterqueue.topic.name": name})


@pytest.mark.parametrize("name", ["", "dlq.orders-1_x", "x" * 249, "_x"])
def test_good_topic_names_are_taken(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["x" * 250, "a\0b", "a\nb"])
def test_bad_names_to_export_to_are_refused(name: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"^share\.offsets\.export\.group="):
        resolve({"share.offsets.export.group": name})


@pytest.mark.parametrize("name", ["", "sharecoord.orders", "größer & mehr", "x" * 249])
def test_good_names_to_export_to_are_taken(name: str) -> None:
    assert check_export_group(name) == name


def test_a_config_travels_between_processes() -> None:
    config = resolve({"share.ordering": "key"})
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert hash(config) == hash(copy.copy(config))
