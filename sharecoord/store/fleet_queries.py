"""Who is there, and what changed. Runs inside one transaction."""

from __future__ import annotations

from sqlalchemy import Connection, select

from sharecoord.core.changes import CoordinatorRow, FleetView
from sharecoord.store.dialects import Dialect
from sharecoord.store.tables import COORDINATOR, SHARE_GROUP

_C = COORDINATOR.c


def read_fleet(connection: Connection, dialect: Dialect) -> FleetView:
    """Coordinators whose lease lives, by id; the epochs of all groups."""
    living = _C.lease_until_ms >= dialect.now_ms(connection)
    found = connection.execute(
        select(_C.id, _C.address, _C.peer_address, _C.draining).where(living)
    )
    epochs = connection.execute(select(SHARE_GROUP.c.group_id, SHARE_GROUP.c.group_epoch))
    return FleetView(
        # Sorted here, because collations of databases differ.
        coordinators=tuple(sorted(map(CoordinatorRow._make, found))),
        group_epochs={str(group_id): int(epoch) for group_id, epoch in epochs},
    )
