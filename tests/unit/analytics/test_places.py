"""Folders and topics as people name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.jobs import check_out
from sharecoord.analytics.places import TopicPlace, place_of
from sharecoord.errors import InvalidConfigError


def test_a_folder_is_a_folder() -> None:
    assert place_of("hdfs://h/e") == "hdfs://h/e"
    with pytest.raises(AnalyticsError, match="--kafka and --kafka-config belong to --events kafka"):
        place_of("e", kafka="h:1")


def test_a_topic_and_its_cluster(tmp_path: Path) -> None:
    place = place_of("kafka:events")
    assert isinstance(place, TopicPlace)
    assert (place.topic, str(place)) == ("events", "kafka:events")
    assert place.settings == {"bootstrap.servers": "localhost:9092"}
    file = tmp_path / "client.conf"
    file.write_text("bootstrap.servers=f:1\nsecurity.protocol=SSL\n")
    from_file = place_of("kafka:events", kafka_config=file, skip_corrupt=True)
    assert from_file == TopicPlace(
        "events", {"bootstrap.servers": "f:1", "security.protocol": "SSL"}, skip_corrupt=True
    )
    named = place_of("kafka:events", kafka="h:2", kafka_config=file)
    assert isinstance(named, TopicPlace)
    assert named.settings["bootstrap.servers"] == "h:2"
    assert named.skipped() == []


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalyticsError, match="write --events kafka:TOPIC"):
        place_of("kafka:")
    with pytest.raises(InvalidConfigError, match=r"nothing\.conf"):
        place_of("kafka:t", kafka_config=tmp_path / "nothing.conf")


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(TopicPlace("t", {"sasl.password": "hidden"}))


def test_tables_never_lie_in_a_topic() -> None:
    check_out(TopicPlace("t", {}), "t/out")
