"""Room that this consumer offers, as the running totals of the wire (`Credit`).

Totals count from the join of the current stream: what has arrived plus the room that is left. They
only grow, so a repeated message does no harm.

Bytes are what the coordinator took from the credit (`RecordBatch.credit_bytes`), so both sides
agree to the byte over the whole life of a stream.
"""

from __future__ import annotations

from typing import Final

from sharecoord_sdk._proto import share_types_pb2 as types_pb

# A refill is worth a message when this part of the room has been used since the last one.
_REFILL_PARTS: Final = 8


class StreamCredit:
    """Room for records and bytes in this process, and what was promised of it."""

    def __init__(self, room_records: int, room_bytes: int) -> None:
        #: How many records may wait; what was promised stays promised when it changes.
        self.room_records = room_records
        self._room_bytes = room_bytes
        self._received_records = 0
        self._received_bytes = 0
        self._granted_records = 0
        self._granted_bytes = 0
        self.buffered_records = 0
        self.buffered_bytes = 0

    def add(self, records: int, size_bytes: int) -> None:
        """Counts records that arrived and wait."""
        self._received_records += records
        self._received_bytes += size_bytes
        self.buffered_records += records
        self.buffered_bytes += size_bytes

    def remove(self, records: int, size_bytes: int) -> None:
        """Counts records that left the buffer, by whichever way."""
        self.buffered_records -= records
        self.buffered_bytes -= size_bytes
        if self.buffered_records == 0:
            # The parts of a batch are rounded down; an empty buffer is the moment to settle that.
            self.buffered_bytes = 0

    def set_buffered(self, records: int, size_bytes: int) -> None:
        self.buffered_records, self.buffered_bytes = records, size_bytes

    def restart(self) -> types_pb.Credit:
        """A new stream: totals count from 0 again. Returns what its join promises."""
        self._received_records = self._received_bytes = 0
        self._granted_records = self._granted_bytes = 0
        return self._grant()

    def refill(self, parts: int = _REFILL_PARTS) -> types_pb.Credit | None:
        """The next promise, or None until one of `parts` parts of the room was used."""
        records = self._total_records() - self._granted_records
        size_bytes = self._total_bytes() - self._granted_bytes
        # Rounded up, so that the smallest room still waits for one record.
        due_records = -(-self.room_records // parts)
        due_bytes = -(-self._room_bytes // parts)
        if records < due_records and size_bytes < due_bytes:
            return None
        return self._grant()

    def _grant(self) -> types_pb.Credit:
        self._granted_records = max(self._granted_records, self._total_records())
        self._granted_bytes = max(self._granted_bytes, self._total_bytes())
        return types_pb.Credit(records_total=self._granted_records, bytes_total=self._granted_bytes)

    def _total_records(self) -> int:
        return self._received_records + max(0, self.room_records - self.buffered_records)

    def _total_bytes(self) -> int:
        return self._received_bytes + max(0, self._room_bytes - self.buffered_bytes)
