"""What can be allowed: one table of actions, and the kinds of resources that they are about.

`python -m sharecoord.runtime.admin.docs` writes docs/security.md's table from it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """The kinds of resources."""

    GROUP = "group"
    TOPIC = "topic"
    DEAD_LETTER_TOPIC = "dead-letter-topic"
    CONSUMER_GROUP = "consumer-group"
    CLUSTER = "cluster"


class Action(StrEnum):
    """What somebody may do with a resource."""

    CONSUME = "consume"
    DESCRIBE = "describe"
    CONFIGURE = "configure"
    RESET = "reset"
    DELETE = "delete"
    PAUSE = "pause"
    SETTLE = "settle"
    REDRIVE = "redrive"
    REPLAY = "replay"
    READ_PAYLOAD = "read-payload"
    READ = "read"
    WRITE = "write"
    AUDIT = "audit"
    PASS_THROUGH = "pass-through"


class Resource(NamedTuple):
    """One thing that an action is about."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


CLUSTER: Final = Resource(Kind.CLUSTER, "sharecoord")
"""The coordinators themselves."""


def group(name: str) -> Resource:
    """A share group."""
    return Resource(Kind.GROUP, name)


def topic(name: str) -> Resource:
    """A topic whose records are delivered."""
    return Resource(Kind.TOPIC, name)


def dead_letter_topic(name: str) -> Resource:
    """A topic that gets dead letters, or gives them back."""
    return Resource(Kind.DEAD_LETTER_TOPIC, name)


def consumer_group(name: str) -> Resource:
    """A consumer group of Kafka, whose offsets are read or written."""
    return Resource(Kind.CONSUMER_GROUP, name)


class Meaning(NamedTuple):
    """What an action allows, by the kind of resource."""

    kind: Kind
    action: Action
    text: str


MEANINGS: Final = (
    Meaning(Kind.GROUP, Action.CONSUME, "Be a member: join, get records, acknowledge them."),
    Meaning(
        Kind.GROUP,
        Action.DESCRIBE,
        "See the group in lists, its state, members, offsets, settings, records in flight and "
        "blocked keys.",
    ),
    Meaning(Kind.GROUP, Action.CONFIGURE, "Change its settings."),
    Meaning(Kind.GROUP, Action.RESET, "Set its start offsets, also from a consumer group's."),
    Meaning(Kind.GROUP, Action.DELETE, "Delete it, or its offsets of a topic."),
    Meaning(Kind.GROUP, Action.PAUSE, "Pause and resume it; block and unblock keys."),
    Meaning(
        Kind.GROUP,
        Action.SETTLE,
        "Finish or release records whoever holds them, also in a member's name.",
    ),
    Meaning(Kind.GROUP, Action.REDRIVE, "Redrive, discard and withdraw its dead letters."),
    Meaning(Kind.GROUP, Action.REPLAY, "Replay its records to a side group."),
    Meaning(
        Kind.GROUP,
        Action.READ_PAYLOAD,
        "List and show its dead letters, with keys, values and headers.",
    ),
    Meaning(Kind.TOPIC, Action.CONSUME, "Get its records, as a member or by a replay."),
    Meaning(
        Kind.TOPIC,
        Action.DESCRIBE,
        "See its partitions and offsets at the Kafka port, as whoever may consume it does.",
    ),
    Meaning(
        Kind.DEAD_LETTER_TOPIC,
        Action.WRITE,
        "Make it a group's dead-letter topic: the coordinator writes there.",
    ),
    Meaning(
        Kind.DEAD_LETTER_TOPIC,
        Action.READ,
        "Name it as the place of dead letters that are listed, read or redriven.",
    ),
    Meaning(
        Kind.CONSUMER_GROUP,
        Action.READ,
        "Take over the offsets that it has committed.",
    ),
    Meaning(
        Kind.CONSUMER_GROUP,
        Action.WRITE,
        "Commit offsets for it, once or by `share.offsets.export.group`.",
    ),
    Meaning(Kind.CLUSTER, Action.DESCRIBE, "See version, addresses and Kafka cluster."),
    Meaning(Kind.CLUSTER, Action.AUDIT, "Ask what others may do."),
    Meaning(
        Kind.CLUSTER,
        Action.PASS_THROUGH,
        "Send to Kafka what the Kafka port passes on (`kafka.port.passthrough`): brokers take it "
        "for the coordinator's own, and let it do what they let the coordinator do.",
    ),
)
"""Every pair of kind and action that means something; rules with another pair are refused."""

ACTIONS_OF: Final = {
    kind: tuple(each.action for each in MEANINGS if each.kind is kind) for kind in Kind
}
"""What may be done with resources of a kind."""

KINDS_OF: Final = {
    action: frozenset(each.kind for each in MEANINGS if each.action is action) for action in Action
}
