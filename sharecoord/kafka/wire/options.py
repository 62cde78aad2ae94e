"""librdkafka's settings that reading needs, as values in seconds and bytes, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from sharecoord.errors import InvalidConfigError
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.kafka.wire.security import Settings

PORT: Final = 9092
"""Of an address that has none."""


class Number(NamedTuple):
    """A setting of librdkafka's: its names, the value when it is not set, and its bounds."""

    keys: tuple[str, ...]
    default: int
    least: int
    most: int

    def of(self, settings: Settings) -> int:
        """The value.

        Raises:
            InvalidConfigError: It is no whole number, or out of bounds.
        """
        for key in self.keys:
            if key in settings:
                try:
                    found = int(settings[key])
                except ValueError:
                    found = self.least - 1
                if not self.least <= found <= self.most:
                    raise InvalidConfigError(
                        f"kafka.{key} is {settings[key]!r}; it is a whole number from {self.least}"
                        f" to {self.most}",
                        metadata={"key": f"kafka.{key}"},
                    )
                return found
        return self.default


ANSWER_BYTES: Final = Number(("receive.message.max.bytes",), 100_000_000, 1000, 2**31 - 1)
SOCKET_MS: Final = Number(("socket.timeout.ms",), 60_000, 10, 300_000)
RETRY_MS: Final = Number(("retry.backoff.ms",), 100, 1, 300_000)
RETRY_MAX_MS: Final = Number(("retry.backoff.max.ms",), 1_000, 1, 300_000)
REFRESH_MS: Final = Number(("topic.metadata.refresh.interval.ms",), 300_000, -1, 3_600_000)
AGE_MS: Final = Number(("metadata.max.age.ms",), 900_000, 1, 86_400_000)
PROPAGATION_MS: Final = Number(("topic.metadata.propagation.max.ms",), 30_000, 0, 3_600_000)

WAIT_MS: Final = Number(("fetch.wait.max.ms",), 500, 0, 300_000)
MIN_BYTES: Final = Number(("fetch.min.bytes",), 1, 1, 100_000_000)
MAX_BYTES: Final = Number(("fetch.max.bytes",), 4 << 20, 0, 2_147_483_135)
"""librdkafka's default is 50 MiB. An answer of 4 MiB already has thousands of records; a larger one
leaves the processor's cache before it is used, and takes memory."""
PARTITION_BYTES: Final = Number(
    ("fetch.message.max.bytes", "max.partition.fetch.bytes"), 4 << 20, 1, 1_000_000_000
)
"""librdkafka's default is 1 MiB; with that, a partition that is read alone would need four requests
for what one brings."""
ERROR_MS: Final = Number(("fetch.error.backoff.ms",), 500, 0, 300_000)

HEAD_BYTES: Final = 512
"""What librdkafka, too, asks `receive.message.max.bytes` to be larger than `fetch.max.bytes`."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How the cluster is found and asked."""

    servers: tuple[Endpoint, ...]
    client_id: str
    timeout_s: float
    answer_bytes_max: int
    retry_s: float
    retry_max_s: float
    refresh_s: float
    """How often metadata is asked for when nothing goes wrong."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The options in librdkafka's settings.

        Raises:
            InvalidConfigError: A value can not be used.
        """
        retry_s = RETRY_MS.of(settings) / 1000
        refresh_ms, age_ms = REFRESH_MS.of(settings), AGE_MS.of(settings)
        return cls(
            servers=servers_of(settings),
            client_id=str(settings.get("client.id", "sharecoord")),
            timeout_s=SOCKET_MS.of(settings) / 1000,
            answer_bytes_max=ANSWER_BYTES.of(settings),
            retry_s=retry_s,
            retry_max_s=max(retry_s, RETRY_MAX_MS.of(settings) / 1000),
            refresh_s=(min(refresh_ms, age_ms) if refresh_ms > 0 else age_ms) / 1000,
        )


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How partitions are read."""

    wait_s: float
    min_bytes: int
    max_bytes: int
    partition_bytes: int
    answer_bytes_max: int
    error_backoff_s: float
    propagation_s: float
    """How long a topic may be unknown that was never seen: brokers learn of it one by one."""
    replica_age_s: float
    """How long the leader's advice holds to read at another replica (KIP-392)."""
    rack: str
    timeout_s: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The options in librdkafka's settings.

        Raises:
            InvalidConfigError: A value can not be used.
        """
        answer_bytes_max = ANSWER_BYTES.of(settings)
        max_bytes = MAX_BYTES.of(settings)
        if max_bytes + HEAD_BYTES > answer_bytes_max:
            if any(key in settings for key in MAX_BYTES.keys):
                raise InvalidConfigError(
                    f"kafka.receive.message.max.bytes is {answer_bytes_max}; it must be larger than"
                    f" kafka.fetch.max.bytes ({max_bytes}) by {HEAD_BYTES}",
                    metadata={"key": "kafka.receive.message.max.bytes"},
                )
            max_bytes = answer_bytes_max - HEAD_BYTES
        return cls(
            wait_s=WAIT_MS.of(settings) / 1000,
            min_bytes=MIN_BYTES.of(settings),
            max_bytes=max_bytes,
            partition_bytes=min(PARTITION_BYTES.of(settings), answer_bytes_max - HEAD_BYTES),
            answer_bytes_max=answer_bytes_max,
            error_backoff_s=ERROR_MS.of(settings) / 1000,
            propagation_s=PROPAGATION_MS.of(settings) / 1000,
            replica_age_s=AGE_MS.of(settings) / 1000,
            rack=str(settings.get("client.rack", "")),
            timeout_s=SOCKET_MS.of(settings) / 1000,
        )


def servers_of(settings: Settings) -> tuple[Endpoint, ...]:
    """The addresses to begin with.

    Raises:
        InvalidConfigError: There is none, or one that is no address.
    """
    key = "bootstrap.servers" if "bootstrap.servers" in settings else "metadata.broker.list"
    texts = [text.strip() for text in str(settings.get(key, "")).split(",")]
    found = tuple(dict.fromkeys(_endpoint(key, text) for text in texts if text))
    if not found:
        raise InvalidConfigError(
            "kafka.bootstrap.servers is empty; it lists brokers as host:port,host:port"
        )
    return found


def _endpoint(key: str, text: str) -> Endpoint:
    """`host`, `host:port`, `[::1]:port`; librdkafka allows a protocol before it."""
    address = text.rpartition("://")[2]
    if address.startswith("["):
        host, closing, rest = address[1:].partition("]")
        port = rest.removeprefix(":")
        good = bool(closing) and (rest.startswith(":") or not rest)
    elif address.count(":") > 1:
        host, port, good = address, "", True
    else:
        host, _, port = address.partition(":")
        good = True
    number = int(port) if port.isascii() and port.isdecimal() else PORT if not port else 0
    if not (host and good and 0 < number < 1 << 16):
        raise InvalidConfigError(
            f"kafka.{key}: {text!r} is no address; write host:port, or [address]:port for IPv6",
            metadata={"key": f"kafka.{key}"},
        )
    return Endpoint(host, number)
