"""Records that were dead letters and are delivered again: they show where they came from first."""

from __future__ import annotations

from typing import Final

HeadersList = list[tuple[str, bytes | None]]

# Headers that a coordinator puts on a dead letter: Kafka's own (KIP-1191), then its own.
_KAFKA_PREFIX: Final = "__dlq.errors."
_PREFIXES: Final = (_KAFKA_PREFIX, "sharecoord-dead-letter-")


def source_of(headers: HeadersList | None) -> tuple[int, int] | None:
    """Partition and offset of the record that became a letter; None when it does not say so."""
    # The coordinator's come behind the record's own, which may have such names as well.
    found = {name: value for name, value in headers or () if name.startswith(_KAFKA_PREFIX)}
    try:
        partition = int(found[_KAFKA_PREFIX + "partition"] or b"")
        offset = int(found[_KAFKA_PREFIX + "offset"] or b"")
    except (KeyError, ValueError):
        return None
    return (partition, offset) if partition >= 0 and offset >= 0 else None


def own_headers(headers: HeadersList | None) -> HeadersList | None:
    """The headers that the record had before it became a letter; None without any."""
    own = [each for each in headers or () if not each[0].startswith(_PREFIXES)]
    return own or None
