"""The main job on every release of Kafka that is supported, with each reader.

The tests are those of `tests/integration`; only the broker and the coordinator are others here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from sharecoord_sdk import TopicPartition

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.integration import (
    test_crashes,
    test_kafka_edges,
    test_offsets_export,
    test_share_group,
)
from tests.integration.test_kafka_edges import EXPLICIT, Groups, TopicFactory, drain
from tests.support import KafkaUnderTest, PatientTopics, eventually

VERSIONS = ("2.8.2", "3.9.1", "4.3.1", "4.4.0")
READERS = ("raw", "librdkafka")

# Fixtures of those modules that their tests ask for.
changes = test_kafka_edges.changes
groups = test_kafka_edges.groups
transactional = test_kafka_edges.transactional
consumers = test_share_group.consumers
exporting = test_offsets_export.exporting

test_every_record_once = test_share_group.test_every_record_once_with_key_value_headers_and_time
test_twenty_members = test_share_group.test_twenty_members_share_one_partition
test_answers_and_limit = test_share_group.test_released_rejected_and_worn_out
test_first_record = (
    test_share_group.test_the_first_record_of_a_fresh_group_comes_within_half_a_second
)
test_locks_survive_kill_9 = test_crashes.test_locks_and_counts_survive_kill_9
test_kills_under_load = test_crashes.test_six_kills_under_load_lose_nothing
test_read_committed = (
    test_kafka_edges.test_read_committed_passes_over_aborted_data_and_control_records
)
test_read_uncommitted = (
    test_kafka_edges.test_read_uncommitted_delivers_aborted_data_but_no_control_record
)
test_open_transaction = (
    test_kafka_edges.test_read_committed_goes_on_behind_a_transaction_that_ends_later
)
test_retention = test_kafka_edges.test_what_retention_takes_away_is_noticed_without_members
test_added_partition = (
    test_kafka_edges.test_an_added_partition_is_read_from_0_by_a_group_that_starts_at_latest
)
test_topic_made_again = (
    test_kafka_edges.test_a_topic_made_again_is_read_from_0_and_its_former_life_is_over
)
test_start_at_log_start = test_kafka_edges.test_a_start_of_the_coordinator_goes_on_at_the_log_start
test_read_below_log_start = (
    test_kafka_edges.test_a_read_below_the_log_start_goes_on_at_the_log_start_at_once
)
test_topic_made_later = (
    test_kafka_edges.test_a_topic_made_after_the_subscription_is_delivered_at_once
)
test_latest = test_kafka_edges.test_latest_starts_behind_what_is_there_and_only_the_first_time
test_compaction = test_kafka_edges.test_holes_of_compaction_are_passed_over
test_lag_of_other_tools = test_offsets_export.test_other_tools_show_the_lag_of_the_share_group
test_names_of_others = test_offsets_export.test_names_of_others_are_left_alone_until_they_are_free

pytestmark = [pytest.mark.long, pytest.mark.kafka]


@pytest.fixture(scope="module", params=itertools.product(VERSIONS, READERS), ids="-".join)
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[KafkaUnderTest]:
    """A broker of each release, one after the other, as a local process.

    All coordinators of its tests have the same reader. It is one fixture, so that whatever is made
    of a broker is made again for the other reader.
    """
    version, reader = request.param
    make = CoordinatorProcess.__init__

    def with_reader(self: CoordinatorProcess, *args: Any, **more: Any) -> None:
        settings = {"kafka.reader": reader, **(more.pop("settings", None) or {})}
        make(self, *args, settings=settings, **more)

    with KafkaBroker(version) as broker, pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoordinatorProcess, "__init__", with_reader)
        yield KafkaUnderTest(broker.bootstrap_servers, "local", broker)


def test_the_reader_is_the_one_that_is_meant(
    coordinator: CoordinatorProcess, request: pytest.FixtureRequest
) -> None:
    reader = request.node.callspec.params["kafka_broker"][1]
    said = {"raw": "as raw batches", "librdkafka": "by librdkafka"}[reader]
    log = coordinator.store_path.with_name("coordinator.log").read_text(encoding="utf-8")
    assert f"records are read {said}" in log


@pytest.fixture(scope="module")
def topics(kafka_broker: KafkaUnderTest) -> Topics:
    """Topics of that broker."""
    return PatientTopics(kafka_broker.bootstrap_servers)


def test_a_lock_that_runs_out_is_another_delivery(
    groups: Groups, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), groups.new(share_record_lock_duration_ms="1000")
    topics.produce(name, 3)
    holder = groups.consumer(group, name, **EXPLICIT)
    held = eventually(lambda: list(holder.poll(0.2)), 20, what="records")
    holder.pause([TopicPartition(name, 0)])
    other = groups.consumer(group, name)
    again = {message.offset(): message.delivery_count() for message in drain(other, 3)}
    assert again == {offset: 2 if offset < len(held) else 1 for offset in range(3)}
    for message in held:
        holder.acknowledge(message)
    # Finished by somebody else meanwhile: the late word changes nothing.
    holder.commit_sync(timeout=20.0)
    groups.finished(group, name, at=3)
