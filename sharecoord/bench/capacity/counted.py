"""A coordinator that counts what it writes to SQLite: for figures, never for service.

It is `sharecoord serve` with one thing added: connections to SQLite count rows and transactions,
and the sums are written to a file when the process ends. SQLite counts rows anyway; nothing that is
timed is measured with it all the same.
"""

from __future__ import annotations

import atexit
import json
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sharecoord.bench.errors import BenchError

_PROGRAM: Final = (
    "import sys\n"
    "from sharecoord.bench.capacity.counted import count_into\n"
    "count_into(sys.argv.pop(1))\n"
    "from sharecoord.cli.main import main\n"
    "sys.exit(main())"
)


@dataclass(slots=True)
class Written:
    """Rows that were inserted, changed or deleted, and transactions that did so."""

    rows: int = 0
    transactions: int = 0


def program(outcome: Path) -> list[str]:
    """The command line, for `CoordinatorProcess`."""
    return [sys.executable, "-c", _PROGRAM, str(outcome), "serve"]


def read_written(outcome: Path) -> Written:
    """Reads the sums of a process that has ended; BenchError when it left none, or still runs."""
    try:
        return Written(**json.loads(outcome.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise BenchError(f"the coordinator left no counts of its store: {error}") from error


def counting_connection(written: Written) -> type[sqlite3.Connection]:
    """A class of connections that add the rows and transactions they commit to `written`."""

    class CountingConnection(sqlite3.Connection):
        seen = 0

        def commit(self) -> None:
            super().commit()
            changed = self.total_changes - self.seen
            if changed:
                written.rows += changed
                written.transactions += 1
                self.seen += changed

    return CountingConnection


def count_into(outcome: str) -> None:
    """Counts the connections that this process makes from now on."""
    written = Written()
    connect: Callable[..., sqlite3.Connection] = sqlite3.dbapi2.connect
    counted = partial(connect, factory=counting_connection(written))
    sqlite3.dbapi2.connect = counted  # type: ignore[assignment]  # what SQLAlchemy calls

    def leave() -> None:
        Path(outcome).write_text(json.dumps(asdict(written)), encoding="utf-8")

    atexit.register(leave)
