"""Sentences that a consumer logs of its own accord."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from .errors import KafkaError


def starts_at_end(group: str, topic: str, address: str) -> str:
    """Why a new group gets nothing that is in its topic already, and how to get it.

    Args:
        group: The share group.
        topic: What it has just begun to read.
        address: The coordinator, as `sharecoord --bootstrap-server` takes it.
    """
    server, name = f"--bootstrap-server {address}", shlex.quote(group)
    return (
        f"group {group!r} is new on topic {topic!r} and starts at its end: it gets the records "
        "that come from now on (share.auto.offset.reset=latest). For those that are there already: "
        f"sharecoord groups {server} --group {name} --topic {topic} --reset-offsets --to-earliest "
        f"--execute --force; for topics that it reads later: sharecoord configs {server} "
        f"--entity-type groups --entity-name {name} --alter --add-config "
        "share.auto.offset.reset=earliest (or latest, and this is not said again)"
    )


def newly_refused(refused: Mapping[str, str], told: set[str]) -> list[KafkaError]:
    """Errors of topics that Kafka refuses to the coordinator and that were not told yet.

    Args:
        refused: What to allow, by topic.
        told: Topics that were told; those that are not refused any more leave it.
    """
    fresh = sorted(refused.keys() - told)
    told.clear()
    told.update(refused)
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    return [KafkaError(code, refused[topic]) for topic in fresh]
