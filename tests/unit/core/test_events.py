"""The schema of the event log."""

from __future__ import annotations

from sharecoord.eventlog.schema import COLUMN_NAMES, COLUMNS, SCHEMA_VERSION, EventKind

VERSION_1 = (
    "schema_version kind time coordinator_id group_id topic topic_id partition change_sequence "
    "event state first_offset last_offset records delivery_count member_id client_id available_ms "
    "age_ms held_ms work_us lock_ms lock_left_ms delay_ms reason key log_end_offset start_offset "
    "end_offset lag due acquired delayed archiving window_max oldest_time members members_waiting "
    "demand got held pace_us interval_ms"
)


def test_columns_are_only_ever_added() -> None:
    names = " ".join(COLUMN_NAMES)
    assert f"{names} ".startswith(f"{VERSION_1} ")
    assert (names != VERSION_1) == (SCHEMA_VERSION > 1)
    assert len(set(COLUMN_NAMES)) == len(COLUMN_NAMES)


def test_every_kind_of_row_has_columns_of_its_own_and_each_says_what_it_means() -> None:
    common = {column.name for column in COLUMNS if column.kinds == tuple(EventKind)}
    assert common == {"schema_version", "kind", "time", "coordinator_id", "group_id"}
    for kind in EventKind:
        assert [column for column in COLUMNS if kind in column.kinds and column.name not in common]
    assert all(column.meaning.endswith(".") for column in COLUMNS)
