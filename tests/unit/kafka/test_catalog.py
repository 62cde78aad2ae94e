"""Each topic and partition is answered by itself, on an admin client that is made up."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from sharecoord.errors import KafkaUnavailableError, UnauthorizedError
from sharecoord.kafka.catalog import KafkaCatalog
from sharecoord.kafka.client import KafkaError, KafkaException
from sharecoord.ports import LATEST, OffsetQuery, TopicInfo

OPEN, CLOSED, BARE = (OffsetQuery(name, 0, LATEST) for name in ("open", "closed", "bare"))


def ended(outcome: Any) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(outcome, int):
        future.set_exception(KafkaException(KafkaError(outcome)))
    else:
        future.set_result(outcome)
    return future


class FakeAdmin:
    """Says of each topic what it is told to: an error's number, or that it is there."""

    def __init__(self, **says: int | None) -> None:
        self.says = says

    def list_topics(self, **_: Any) -> Any:
        return SimpleNamespace(cluster_id="c", brokers={1: None})

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Future[Any]]:
        there = SimpleNamespace(partitions=[SimpleNamespace(id=0)], topic_id=None)
        return {
            name: ended(there if self.says[name] is None else self.says[name])
            for name in topics.topic_names
        }

    def list_offsets(self, places: Any, **_: Any) -> dict[Any, Future[Any]]:
        there = SimpleNamespace(offset=7, timestamp=-1, leader_epoch=0)
        return {
            place: ended(there if self.says[place.topic] is None else self.says[place.topic])
            for place in places
        }

    def poll(self, _: float) -> None:
        pass


def catalog_of(
    monkeypatch: pytest.MonkeyPatch, **says: int | None
) -> tuple[KafkaCatalog, FakeAdmin]:
    catalog, admin = KafkaCatalog({"bootstrap.servers": "kafka:9092"}), FakeAdmin(**says)
    monkeypatch.setattr(catalog, "_admin", admin)
    return catalog, admin


async def test_a_refused_topic_is_left_out_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, admin = catalog_of(
        monkeypatch,
        open=None,
        closed=KafkaError.TOPIC_AUTHORIZATION_FAILED,
        none=KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
    with capture_logs() as logs:
        for _ in range(3):
            assert await catalog.describe(["open", "closed", "none"]) == {
                "open": TopicInfo("", (0,))
            }
            assert await catalog.offsets([OPEN, CLOSED]) == {OPEN: 7}
    assert [(line["event"], line["topic"]) for line in logs] == [("topic refused", "closed")]
    assert "allow its principal READ" in catalog.refusals["closed"].message
    assert await catalog.look("none") is None
    for answer in (catalog.look("closed"), catalog.offsets([CLOSED])):
        with pytest.raises(UnauthorizedError, match="'closed'"):
            await answer
    admin.says["closed"] = None
    assert set(await catalog.describe(["open", "closed"])) == {"open", "closed"}
    # What was refused of it by another question may be refused still.
    assert set(catalog.refusals) == {"closed"}
    assert await catalog.offsets([CLOSED]) == {CLOSED: 7}
    assert dict(catalog.refusals) == {}
    await catalog.close()


async def test_a_partition_without_a_leader_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, _ = catalog_of(monkeypatch, open=None, bare=KafkaError.LEADER_NOT_AVAILABLE)
    with capture_logs() as logs:
        for _ in range(3):
            assert await catalog.offsets([OPEN, BARE]) == {OPEN: 7}
    assert [(line["topic"], line["why"]) for line in logs] == [("bare", "LEADER_NOT_AVAILABLE")]
    with pytest.raises(KafkaUnavailableError, match="kafka:9092"):
        await catalog.offsets([BARE])


async def test_nobody_takes_a_topic_for_deleted_that_kafka_can_not_describe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog, _ = catalog_of(monkeypatch, open=None, bare=KafkaError._TIMED_OUT)
    with pytest.raises(KafkaUnavailableError):
        await catalog.describe(["open", "bare"])
