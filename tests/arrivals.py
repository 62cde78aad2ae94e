"""What came to the consumers of a test, in the form in which it came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from sharecoord_batches.headers import COMPRESSION
from sharecoord_sdk._core import whole
from sharecoord_sdk._core.core import ConsumerCore
from sharecoord_sdk._core.frames import Frame
from sharecoord_sdk._proto import share_types_pb2 as types_pb


class Arrived(NamedTuple):
    """One delivery."""

    batch: types_pb.RecordBatch
    contents: Sequence[memoryview | bytes]
    """Its whole batches; none = it came as columns."""

    @property
    def compressions(self) -> set[int]:
        """Those of its whole batches, by Kafka's numbers."""
        return {whole.header_of(each).attributes & COMPRESSION for each in self.contents}


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[Arrived]:
    """What came to all consumers of this process."""
    found: list[Arrived] = []
    batches = ConsumerCore._batches

    def noting(core: ConsumerCore, frame: Frame, received_at: float) -> None:
        found.extend(map(Arrived, frame.response.batches, frame.whole))
        batches(core, frame, received_at)

    monkeypatch.setattr(ConsumerCore, "_batches", noting)
    return found
