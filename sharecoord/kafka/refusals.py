"""Topics that Kafka refuses to the coordinator: each is logged once, with what to allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import structlog

from sharecoord.errors import UnauthorizedError

log = structlog.get_logger(__name__)


READ, DESCRIBE, OFFSETS, COMMIT = "read", "describe", "offsets", "commit"
"""Kinds of questions about a topic."""


def refused(topic: str) -> UnauthorizedError:
    """The error of a topic that Kafka refuses."""
    return UnauthorizedError(
        f"Kafka refuses topic {topic!r} to the coordinator (TOPIC_AUTHORIZATION_FAILED); allow its "
        "principal READ, and with it DESCRIBE, on the topic"
    )


class Refusals(Mapping[str, UnauthorizedError]):
    """Topics that Kafka refuses at present, each with its error."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, UnauthorizedError]] = {}
        """Errors by topic, then by the kind of question."""

    def add(self, topic: str, asked_for: str, why: UnauthorizedError) -> None:
        """Notes that Kafka has just refused a topic."""
        if topic not in self._known:
            log.warning("topic refused", topic=topic, why=why.message)
        self._known.setdefault(topic, {})[asked_for] = why

    def answered(self, topic: str, asked_for: str) -> None:
        """Notes that Kafka has just answered about a topic."""
        known = self._known.get(topic)
        if known is not None and known.pop(asked_for, None) is not None and not known:
            del self._known[topic]
            log.info("topic no longer refused", topic=topic)

    def __getitem__(self, topic: str) -> UnauthorizedError:
        return next(iter(self._known[topic].values()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
