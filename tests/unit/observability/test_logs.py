"""What stands in a line of the log."""

from __future__ import annotations

import pytest
import structlog

from sharecoord.core.changes import PartitionKey
from sharecoord.observability.logs import configure_logging, name_partitions

KEY = PartitionKey("workers", "orders", "0" * 32, 3)
LANE = PartitionKey("workers", "dead", "1" * 32, 0, "orders/3")


def test_the_partition_of_a_line_is_group_topic_and_partition() -> None:
    found = name_partitions(None, "", {"event": "re-read failed", "partition": KEY})
    assert found == {
        "event": "re-read failed",
        "group": "workers",
        "topic": "orders",
        "partition": 3,
    }


def test_other_partitions_of_a_line_are_texts() -> None:
    found = name_partitions(None, "", {"lanes": [LANE], "place": KEY, "partitions": 7})
    assert found["place"] == "workers: orders[3]"
    assert found["lanes"] == [f"workers: {LANE.name}[0]"]
    assert found["partitions"] == 7


def test_a_partition_that_is_a_number_stays_one() -> None:
    line = {"group": "g", "topic": "t", "partition": 2}
    assert name_partitions(None, "", dict(line)) == line


@pytest.mark.parametrize("json", [True, False])
def test_a_traceback_shows_no_values(json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Where rich is loaded, structlog would print every variable, passwords too."""
    import rich  # noqa: F401

    configure_logging(level="debug", json=json)
    password = "".join(["hunter", "2"])
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger("test").exception("it failed")
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "ValueError: 7" in said
    assert password not in said
