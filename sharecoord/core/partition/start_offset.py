"""The start offset of a group on a partition that it has never read."""

from __future__ import annotations

from sharecoord.config.group import AutoOffsetReset, ResetStrategy
from sharecoord.errors import InternalError


def resolve_start(
    policy: AutoOffsetReset, log_start: int, log_end: int, offset_for_time: int | None = None
) -> int:
    """The start offset by `share.auto.offset.reset`, within [log_start, log_end] (design 5.7).

    `log_end` lies behind the last readable offset (under read_committed the last stable one).
    `offset_for_time` is for BY_DURATION the first offset whose timestamp is at or after now less
    the duration; None or negative = there is no such record yet.

    Raises:
        InternalError: The log ends before it starts.
    """
    if not 0 <= log_start <= log_end:
        raise InternalError(f"the log ends at {log_end}, before its start {log_start}")
    match policy.strategy:
        case ResetStrategy.EARLIEST:
            return log_start
        case ResetStrategy.LATEST:
            return log_end
        case ResetStrategy.BY_DURATION:
            if offset_for_time is None or offset_for_time < 0:
                return log_end
            return min(max(offset_for_time, log_start), log_end)
