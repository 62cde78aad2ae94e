"""Raw samples: columns in memory while consumers run, one file per process afterwards."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

NO_LATENCY: Final = -1
_HEADER: Final = "q"


@dataclass(slots=True)
class Samples:
    """Columns of equal length: one row per handled record, or per batch when there is no work.

    `began_ns` and `busy_ns` tell when the handler was called and how long it took; `latency_ns` is
    from the intended send time to that call, -1 when it is not measured.
    """

    consumer: array[int] = field(default_factory=lambda: array("i"))
    records: array[int] = field(default_factory=lambda: array("i"))
    began_ns: array[int] = field(default_factory=lambda: array("q"))
    busy_ns: array[int] = field(default_factory=lambda: array("q"))
    latency_ns: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.consumer)

    def columns(self) -> tuple[array[int], ...]:
        """All columns in the order of the file."""
        return (self.consumer, self.records, self.began_ns, self.busy_ns, self.latency_ns)

    def add(
        self, consumer: int, records: int, began_ns: int, busy_ns: int, latency_ns: int
    ) -> None:
        """Appends a row. Not for use by two threads at a time."""
        self.consumer.append(consumer)
        self.records.append(records)
        self.began_ns.append(began_ns)
        self.busy_ns.append(busy_ns)
        self.latency_ns.append(latency_ns)

    def extend(self, other: Samples) -> None:
        """Appends the rows of another one."""
        for own, more in zip(self.columns(), other.columns(), strict=True):
            own.extend(more)

    def write(self, path: Path) -> None:
        """Writes all rows to a file of this machine's byte order."""
        with path.open("wb") as file:
            array(_HEADER, [len(self)]).tofile(file)
            for column in self.columns():
                column.tofile(file)

    @classmethod
    def read(cls, path: Path) -> Samples:
        """Reads the file of `write`; EOFError or ValueError when the file is not whole."""
        samples = cls()
        with path.open("rb") as file:
            header = array(_HEADER)
            header.fromfile(file, 1)
            for column in samples.columns():
                column.fromfile(file, header[0])
        return samples
