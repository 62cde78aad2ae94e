"""A view of what is in flight that a person can read.

Revision: 0002. A frozen copy: it does not import `sharecoord.store.tables`, which moves on.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
needs_downtime = False

_UTC_OF_MS = {
    "sqlite": "datetime({0} / 1000, 'unixepoch')",
    "postgresql": "to_timestamp({0} / 1000) AT TIME ZONE 'UTC'",
}
_MYSQL = "TIMESTAMPADD(SECOND, {0} DIV 1000, '1970-01-01')"


def upgrade() -> None:
    """Makes the view."""
    utc = _UTC_OF_MS.get(op.get_bind().dialect.name, _MYSQL)
    locked_until, available_at = utc.format("f.deadline_ms"), utc.format("f.available_at_ms")
    op.execute(f"""
CREATE VIEW records_in_flight AS
SELECT p.group_id, p.topic, p.partition_index, p.lane, f.first_offset, f.last_offset,
       CASE f.state WHEN 0 THEN 'available' WHEN 1 THEN 'acquired' WHEN 3 THEN 'archiving'
                    ELSE 'archived' END AS state,
       f.delivery_count, f.member_id, m.client_id, m.host,
       CASE WHEN f.state = 1 THEN {locked_until} END AS locked_until_utc,
       CASE WHEN f.available_at_ms > 0 THEN {available_at} END AS available_at_utc,
       f.reason
FROM in_flight f
JOIN share_partition p ON p.id = f.partition_id
LEFT JOIN member m ON m.group_id = p.group_id AND m.member_id = f.member_id
WHERE NOT p.closed
""")
