"""Back-off, causes of archives, and the table of legal moves."""

from __future__ import annotations

import pytest

from sharecoord.core.partition.outcomes import archive_cause, archive_message, archived, forced
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import LEGAL_MOVES, ArchiveReason, RecordState
from sharecoord.core.window.window import RangeState

BACKOFF = PartitionSettings(retry_backoff_ms=1_000, retry_backoff_max_ms=60_000)


def test_no_back_off_by_default() -> None:
    assert PartitionSettings().backoff_ms(3) == 0


@pytest.mark.parametrize(
    ("failures", "wait_ms"), [(0, 1_000), (1, 1_000), (2, 2_000), (6, 32_000), (7, 60_000)]
)
def test_the_back_off_doubles_up_to_its_ceiling(failures: int, wait_ms: int) -> None:
    assert BACKOFF.backoff_ms(failures) == wait_ms


def test_the_back_off_stays_finite_at_the_limits() -> None:
    wild = BACKOFF._replace(retry_backoff_multiplier=100.0)
    assert wild.backoff_ms(1_000) == 60_000


def test_a_ceiling_below_the_first_wait_means_constant_waits() -> None:
    assert BACKOFF._replace(retry_backoff_max_ms=0).backoff_ms(9) == 1_000


def test_jitter_spreads_within_its_part_and_is_the_same_for_the_same_token() -> None:
    jittered = BACKOFF._replace(retry_backoff_jitter=0.2)
    waits = [jittered.backoff_ms(2, spread=(1 << 32) | token) for token in range(1, 200)]
    assert waits == [jittered.backoff_ms(2, spread=(1 << 32) | token) for token in range(1, 200)]
    assert all(1_600 <= wait <= 2_400 for wait in waits)
    assert len({wait // 100 for wait in waits}) == 8


def test_jitter_never_exceeds_the_ceiling_and_never_vanishes() -> None:
    jittered = BACKOFF._replace(retry_backoff_jitter=1.0)
    assert max(jittered.backoff_ms(9, spread=token) for token in range(300)) <= 60_000
    assert min(jittered.backoff_ms(1, spread=token) for token in range(300)) >= 1


def test_cause_and_message_of_an_archive() -> None:
    old, settings = RangeState(RecordState.ACQUIRED, 3), PartitionSettings()
    value = archived(old, settings, ArchiveReason.REJECTED, "no: such user")
    assert (archive_cause(value), archive_message(value)) == (
        ArchiveReason.REJECTED,
        "no: such user",
    )
    silent = archived(old, settings, ArchiveReason.DELIVERY_LIMIT, None)
    assert (archive_cause(silent), archive_message(silent)) == (ArchiveReason.DELIVERY_LIMIT, None)
    assert archive_cause(forced(old, ArchiveReason.ADMIN)) is ArchiveReason.ADMIN


@pytest.mark.parametrize("final", [RecordState.ACKNOWLEDGED, RecordState.ARCHIVED])
def test_1_2_nothing_leaves_a_final_state(final: RecordState) -> None:
    assert not LEGAL_MOVES[final]


def test_1_2_archiving_ends_archived_only() -> None:
    assert LEGAL_MOVES[RecordState.ARCHIVING] == {RecordState.ARCHIVED}
