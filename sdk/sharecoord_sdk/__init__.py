"""sharecoord_sdk: share consumers (KIP-932) on any Apache Kafka cluster, without a Kafka client.

    from sharecoord_sdk import ShareConsumer

    with ShareConsumer({"bootstrap.servers": "localhost:7070", "group.id": "workers"}) as consumer:
        consumer.subscribe(["orders"])
        while True:
            for message in consumer.poll(1.0):
                handle(message.value())

`ShareConsumer` is the drop-in twin of `confluent_kafka.ShareConsumer`: change the import and the
address. Everything public is in `__all__`; `sharecoord_sdk.testing` helps to test handlers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._async.consumer import AsyncShareConsumer
from ._core.deserializing import MessageField, SerializationContext
from ._core.errors import (
    ConcurrentModificationException,
    IllegalStateException,
    KafkaError,
    KafkaException,
)
from ._core.outcomes import Outcome, Reject, Retry
from ._core.records import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    AcknowledgeType,
    Message,
    Messages,
    ThrottleEvent,
    TopicPartition,
)
from ._sync.consumer import ShareConsumer
from ._sync.deserializing import DeserializingShareConsumer
from ._version import __version__
from .admin import AdminClient, AsyncAdminClient

if TYPE_CHECKING:
    from .worker import Backoff, BatchOutcome, Breaker, Worker, WorkerState

__all__ = [
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AcknowledgeType",
    "AdminClient",
    "AsyncAdminClient",
    "AsyncShareConsumer",
    "Backoff",
    "BatchOutcome",
    "Breaker",
    "ConcurrentModificationException",
    "DeserializingShareConsumer",
    "IllegalStateException",
    "KafkaError",
    "KafkaException",
    "Message",
    "MessageField",
    "Messages",
    "Outcome",
    "Reject",
    "Retry",
    "SerializationContext",
    "ShareConsumer",
    "ThrottleEvent",
    "TopicPartition",
    "Worker",
    "WorkerState",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """The names of `worker`, imported when they are asked for.

    `python -m sharecoord_sdk.worker` runs that module; imported before, it would be there twice.
    """
    if name == "worker" or name in __all__:
        module = import_module(".worker", __name__)
        return module if name == "worker" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
