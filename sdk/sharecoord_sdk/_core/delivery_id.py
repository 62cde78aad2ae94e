"""Which delivery of which record a message is: what an outbox writes down."""

from __future__ import annotations

from typing import NamedTuple

from .records import Message, origin_of


class DeliveryId(NamedTuple):
    """A delivery, by the coordinator's own names.

    The first six fields name the record in its present life, the same at each of its deliveries; a
    reset of the group's offsets begins another one.
    """

    group_id: str
    topic: str
    topic_id: str
    """32 hex digits; "" where the cluster has none."""
    partition: int
    offset: int
    replay_epoch: int
    member_id: str
    lock_token: int
    """Unsigned 64 bits; 0 = there is no lock: a test made the message."""


def delivery_id_of(message: Message) -> DeliveryId:
    """The delivery that a message came with.

    One that a test made has no group, no member and no lock.

    Raises:
        ValueError: It names no record: the application made it, or it is an error.
    """
    origin = origin_of(message)
    if origin is None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or offset is None:
            raise ValueError("the message names no record: it has no topic, partition or offset")
        return DeliveryId("", topic, "", partition, offset, 0, "", 0)
    columns, row = origin
    lock = columns.lock_at(row)
    place, (group_id, member_id) = columns.key, columns.holder
    return DeliveryId(
        group_id,
        place.topic,
        place.topic_id.hex(),
        place.partition,
        columns.offset_at(row),
        columns.replay_epoch,
        member_id,
        0 if lock is None else lock.token,
    )
