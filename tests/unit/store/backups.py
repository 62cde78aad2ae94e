"""What the tests of backups share: states of stores, and backups that were tampered with."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from sharecoord.core.changes import Checkpoint, LoadedPartition
from sharecoord.errors import (
    InvalidRequestError,
    SharecoordError,
)
from sharecoord.store.dialects import SqliteDialect
from sharecoord.store.tables import COORDINATOR
from sharecoord.store.tools.access import StoreAccess
from sharecoord.store.tools.backup import EPOCH_STEP, TABLES, backup_store, restore_store
from sharecoord.store.tools.raw_rows import Row, stored_rows
from tests.contract.store_worlds import (
    START_MS,
    AnyStore,
    World,
    change_of,
    claimed,
    commit,
    head_of,
    kept_of,
    letter_of,
    member_of,
    row_of,
)

State = dict[str, list[Row]]


def access_of(path: Path) -> StoreAccess:
    """The tools' way to a SQLite file."""
    dialect = SqliteDialect(path, clock_ms=lambda: START_MS, pragmas={"synchronous": "OFF"})
    return StoreAccess(dialect, name=f"store {path}")


def rows_of(access: StoreAccess) -> State:
    """Every row of every table, in an order that is the same for every database."""
    with access.snapshot() as (connection, _):
        state: State = {}
        for table in (COORDINATOR, *TABLES):
            with stored_rows(connection, table) as rows:
                state[table.name] = in_order(rows)
        return state


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Sorted; booleans as 0 and 1."""
    plain = (tuple(int(v) if isinstance(v, bool) else v for v in row) for row in rows)
    return sorted(plain, key=repr)


def state_of(path: Path) -> State:
    """The same of a SQLite file."""
    return rows_of(access_of(path))


def restored_state(state: State) -> State:
    """What a restore is to make of a state: the same rows, of nobody, under higher epochs."""
    parts = [list(row) for row in state["share_partition"]]
    groups = [list(row) for row in state["share_group"]]
    joined = [list(row) for row in state["member"]]
    meta = dict(state["store_meta"])
    highest = max([int(meta.get("epoch_floor", "0")), *(r[2] for r in groups)])
    epoch = max([highest, *(max(r[11], r[13]) for r in parts)]) + EPOCH_STEP
    for row in parts:
        row[10:14] = [None, epoch, 0, epoch]
    for row in groups:
        row[2] = epoch
    for row in joined:
        row[2] += EPOCH_STEP
    meta["epoch_floor"] = str(epoch)
    changed = {"share_partition": parts, "share_group": groups, "member": joined}
    rows = {name: [tuple(row) for row in found] for name, found in changed.items()}
    made = {**state, "coordinator": [], **rows, "store_meta": [*meta.items()]}
    return {name: in_order(found) for name, found in made.items()}


def filled(world: World) -> tuple[AnyStore, LoadedPartition]:
    """A store with a row in every table, open."""
    store = world.open()
    loaded = claimed(store)
    rows = [row_of(0, 4), row_of(7, 9, state=0, available_at_ms=START_MS + 5)]
    head = head_of(0, 100, finished=92)
    letters, half, kept = [letter_of(5)], [Checkpoint(3, b"half \xff", START_MS)], [kept_of(8)]
    commit(
        store,
        change_of(
            loaded, head=head, upserted=rows, dead_letters=letters, checkpoints=half, kept=kept
        ),
    )
    store.join_members([member_of()])
    store.save_group_config("group", set_values={"share.ordering": "key"}, deleted=[])
    store.save_blocked_keys("group", blocked={b"k\xff": "ticket 7"}, unblocked=[])
    return store, loaded


def backup_of(path: Path, to: Path) -> Path:
    """A backup of a store."""
    backup_store(access_of(path), to, replace=False)
    return to


# -- other files ----------------------------------------------------------------------------------


def refused(file: Path, kind: type[SharecoordError] = InvalidRequestError) -> str:
    """The message with which a file is refused; the store is not even made."""
    path = file.with_name("refused.db")
    with pytest.raises(kind) as caught:
        restore_store(access_of(path), file, replace=False)
    assert not path.exists()
    return caught.value.message


Lines = list[bytes]


def with_lines(file: Path, change: Callable[[Lines], None], *, summed: bool = True) -> Path:
    """The backup with other lines, packed again, with a checksum that fits (or not)."""
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    change(lines)
    if summed:
        digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
        lines[-1] = json.dumps({"sha256": digest}).encode() + b"\n"
    file.write_bytes(gzip.compress(b"".join(lines)))
    return file


def header_with(lines: Lines, **values: Any) -> None:
    lines[0] = json.dumps({**json.loads(lines[0]), **values}).encode() + b"\n"


def swap(lines: Lines, old: bytes, new: bytes) -> None:
    joined = b"".join(lines)
    assert joined.count(old) == 1
    lines[:] = joined.replace(old, new).splitlines(keepends=True)
