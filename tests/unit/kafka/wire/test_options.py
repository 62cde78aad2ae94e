"""librdkafka's settings, by its names and within its bounds."""

from __future__ import annotations

from typing import Any

import pytest

from sharecoord.errors import InvalidConfigError
from sharecoord.kafka.wire import options
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.keys import HONOURED, READING
from sharecoord.kafka.wire.options import ClusterOptions, FetchOptions, Number, servers_of


def test_addresses_of_all_kinds() -> None:
    text = "a:1, b ,[::1]:9093,[::2],PLAINTEXT://c:5,::3,a:1"
    assert servers_of({"bootstrap.servers": text}) == (
        Endpoint("a", 1),
        Endpoint("b", 9092),
        Endpoint("::1", 9093),
        Endpoint("::2", 9092),
        Endpoint("c", 5),
        Endpoint("::3", 9092),
    )
    assert servers_of({"metadata.broker.list": "z:7"}) == (Endpoint("z", 7),)


@pytest.mark.parametrize(
    "text", ["", " , ", "a:0", "a:70000", "a:x", ":1", "[::1", "[::1]x", "a:²"]
)
def test_what_is_no_address_is_named(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"bootstrap\.servers"):
        servers_of({"bootstrap.servers": text})


@pytest.mark.parametrize(
    ("key", "value", "field", "found"),
    [
        ("fetch.wait.max.ms", "100", "wait_s", 0.1),
        ("fetch.min.bytes", 9, "min_bytes", 9),
        ("fetch.max.bytes", 5000, "max_bytes", 5000),
        ("max.partition.fetch.bytes", 77, "partition_bytes", 77),
        ("fetch.message.max.bytes", 78, "partition_bytes", 78),
        ("fetch.error.backoff.ms", 20, "error_backoff_s", 0.02),
        ("topic.metadata.propagation.max.ms", 20, "propagation_s", 0.02),
        ("metadata.max.age.ms", 2000, "replica_age_s", 2.0),
        ("client.rack", "b", "rack", "b"),
        ("socket.timeout.ms", 2000, "timeout_s", 2.0),
    ],
)
def test_settings_of_fetching(key: str, value: Any, field: str, found: Any) -> None:
    assert getattr(FetchOptions.of({key: value}), field) == found


@pytest.mark.parametrize("value", ["x", -1, 300_001, "1.5"])
def test_values_out_of_bounds_are_named(value: Any) -> None:
    with pytest.raises(
        InvalidConfigError, match=r"kafka\.fetch\.wait\.max\.ms .* from 0 to 300000"
    ):
        FetchOptions.of({"fetch.wait.max.ms": value})


def test_an_answer_may_be_as_large_as_is_asked_for() -> None:
    assert FetchOptions.of({"receive.message.max.bytes": 10_000}).max_bytes == 9_488
    with pytest.raises(InvalidConfigError, match=r"larger than kafka\.fetch\.max\.bytes"):
        FetchOptions.of({"receive.message.max.bytes": 10_000, "fetch.max.bytes": 10_000})


def test_metadata_is_refreshed_by_the_shorter_of_two_settings() -> None:
    servers = {"bootstrap.servers": "a"}
    assert ClusterOptions.of(servers).refresh_s == 300
    assert ClusterOptions.of({**servers, "metadata.max.age.ms": 5_000}).refresh_s == 5
    off = {**servers, "topic.metadata.refresh.interval.ms": -1}
    assert ClusterOptions.of(off).refresh_s == 900


def test_the_keys_that_are_read_here_are_those_that_are_said_to_be() -> None:
    numbers = [each for each in vars(options).values() if isinstance(each, Number)]
    read = {key for each in numbers for key in each.keys}
    read |= {"bootstrap.servers", "metadata.broker.list", "client.rack"}
    # Checksums are compared by who opens batches.
    assert read - HONOURED == READING - {"check.crcs"}
