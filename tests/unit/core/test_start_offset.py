"""`share.auto.offset.reset`: specification 1.7, design 5.7."""

from __future__ import annotations

import pytest

from sharecoord.config.group import AutoOffsetReset, ResetStrategy, parse_auto_offset_reset
from sharecoord.core.partition.start_offset import resolve_start
from sharecoord.errors import InternalError

HOUR = AutoOffsetReset(ResetStrategy.BY_DURATION, 3_600_000)


@pytest.mark.parametrize(
    ("policy", "offset_for_time", "start"),
    [
        (parse_auto_offset_reset("earliest"), None, 10),
        (parse_auto_offset_reset("latest"), None, 50),
        (HOUR, 30, 30),
        (HOUR, 5, 10),
        (HOUR, 99, 50),
        (HOUR, None, 50),
        (HOUR, -1, 50),
    ],
)
def test_1_7_where_a_group_begins(
    policy: AutoOffsetReset, offset_for_time: int | None, start: int
) -> None:
    assert resolve_start(policy, 10, 50, offset_for_time) == start


def test_an_empty_log_has_one_start() -> None:
    for text in ("earliest", "latest", "by_duration:PT1H"):
        assert resolve_start(parse_auto_offset_reset(text), 7, 7) == 7


@pytest.mark.parametrize(("log_start", "log_end"), [(5, 4), (-1, 4)])
def test_a_log_that_ends_before_it_starts_is_a_mistake(log_start: int, log_end: int) -> None:
    with pytest.raises(InternalError, match="before its start"):
        resolve_start(AutoOffsetReset(), log_start, log_end)
