"""The options of the data source."""

from __future__ import annotations

import json

import pytest

from sharecoord.analytics.kafka_source.connector import java_settings
from sharecoord.analytics.kafka_source.options import (
    EARLIEST,
    LATEST,
    SourceOptions,
    offsets_json,
    parse_options,
)
from sharecoord.errors import InvalidConfigError

GIVEN = {"topic": "events", "kafka.bootstrap.servers": "h:9092"}


def parsed(*, stream: bool = False, **given: str) -> SourceOptions:
    named = {name.replace("_", "."): text for name, text in given.items()}
    return parse_options({**GIVEN, **named}, stream=stream)


def test_defaults() -> None:
    found = parsed()
    assert found == SourceOptions("events", {"bootstrap.servers": "h:9092"})
    assert (found.starting, found.ending, found.starting_time_ms) == (None, LATEST, None)
    assert (found.fail_on_data_loss, found.skip_corrupt) == (True, False)
    assert found.offsets_per_trigger is None


def test_names_have_no_case_because_spark_has_none() -> None:
    given = {
        "TOPIC": "t",
        "Kafka.Bootstrap.Servers": "h:1",
        "startingoffsets": "earliest",
        "ENDINGOFFSETS": '{"t":{"0":7,"1":-1}}',
        "failondataloss": "False",
        "Skip.Corrupt": "true",
        "max.offsets.per.partition": "5",
        "poll.timeout.ms": "100",
    }
    assert parse_options(given, stream=False) == SourceOptions(
        *("t", {"bootstrap.servers": "h:1"}, EARLIEST, {0: 7, 1: LATEST}, None, False, 5, None),
        skip_corrupt=True,
        poll_timeout_ms=100,
    )


def test_kafkas_own_settings_pass() -> None:
    found = parsed(kafka_security_protocol="SASL_SSL", kafka_sasl_password="hidden")
    assert found.kafka["security.protocol"] == "SASL_SSL"
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffset": "earliest"}, 'unknown option "startingOffset". Did you mean "start'),
        ({"topik": "x"}, 'Did you mean "topic"'),
        ({"max.offset.per.trigger": "1"}, 'Did you mean "max.offsets.per.trigger"'),
        ({"xyzzy": "1"}, "There are kafka"),
        ({"topic": " "}, 'option "topic" is missing'),
        ({"kafka.bootstrap.servers": ""}, '"kafka.bootstrap.servers" is missing'),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets says where reading begins"),
        ({"kafka.error_cb": "x"}, "it takes a function"),
        ({"max.offsets.per.partition": "0"}, 'per.partition="0" is not valid: it must be at least'),
        ({"max.offsets.per.partition": "many"}, 'per.partition="many"'),
        ({"poll.timeout.ms": "-1"}, 'poll.timeout.ms="-1"'),
        ({"skip.corrupt": "maybe"}, 'skip.corrupt="maybe"'),
        ({"startingTimestamp": "yesterday"}, 'startingTimestamp="yesterday"'),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, "startingOffsets is set too"),
        ({"startingOffsets": "latest"}, "a batch would be empty"),
        ({"max.offsets.per.trigger": "1"}, "a batch has no triggers"),
        ({"startingOffsets": "begin"}, "neither a word nor JSON"),
        ({"startingOffsets": "[]"}, 'must hold the topic "events" alone'),
        ({"startingOffsets": '{"other":{"0":1}}'}, 'must hold the topic "events" alone'),
        ({"startingOffsets": '{"events":{"x":1}}'}, '"x": 1 is no partition'),
        ({"startingOffsets": '{"events":{"0":-3}}'}, '"0": -3 is no partition'),
        ({"startingOffsets": '{"events":{"0":true}}'}, '"0": true is no partition'),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_options({**GIVEN, **given}, stream=False)
    assert says in caught.value.message


def test_a_stream_has_options_of_its_own() -> None:
    found = parsed(stream=True, startingOffsets="latest", max_offsets_per_trigger="9")
    assert (found.starting, found.offsets_per_trigger) == (LATEST, 9)
    with pytest.raises(InvalidConfigError, match="a stream has no end"):
        parsed(stream=True, endingOffsets="latest")


def test_what_belongs_to_either_passes_while_it_is_not_known() -> None:
    either = {"startingOffsets": "latest", "endingOffsets": "latest"}
    found = parse_options({**GIVEN, **either, "max.offsets.per.trigger": "9"})
    assert (found.starting, found.ending) == (LATEST, LATEST)


def test_offsets_as_the_options_take_them() -> None:
    text = offsets_json("events", {10: 1, 2: 0})
    assert list(json.loads(text)["events"]) == ["2", "10"]
    assert parsed(startingOffsets=text).starting == {2: 0, 10: 1}


def test_settings_for_sparks_own_connector() -> None:
    assert java_settings({"bootstrap.servers": "h:1"}) == {"bootstrap.servers": "h:1"}
    found = java_settings(
        {
            "bootstrap.servers": "h:1",
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": "/ca.pem",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "me",
            "sasl.password": 'a"b',
        }
    )
    assert found is not None
    assert found["sasl.jaas.config"].endswith(r'required username="me" password="a\"b";')
    assert (found["ssl.truststore.type"], found["sasl.mechanism"]) == ("PEM", "PLAIN")
    # What Java's client has no counterpart for is read by librdkafka.
    for other in ({"sasl.mechanism": "OAUTHBEARER"}, {"fetch.wait.max.ms": "5"}):
        assert java_settings({"bootstrap.servers": "h:1", **other}) is None
