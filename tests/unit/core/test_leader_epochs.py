"""The epoch before an offset, from what was read."""

from __future__ import annotations

import bisect

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.changes import PartitionHead
from sharecoord.core.partition.leader_epochs import UNKNOWN, LeaderEpochs
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings


def epochs(*read: tuple[int, int], end: int = 10, epoch: int = 3) -> LeaderEpochs:
    made = LeaderEpochs(end, epoch)
    for upto, found in read:
        made.read(upto, found, window_end=end)
    return made


def test_an_end_has_the_epoch_of_the_record_before_it() -> None:
    found = epochs((20, 3), (30, 5))
    assert [found.before(at) for at in (10, 15, 20, 21, 30, 31)] == [3, 3, 3, 5, 5, UNKNOWN]


def test_nothing_known_is_nothing_shown_until_records_come() -> None:
    found = epochs(epoch=UNKNOWN)
    assert found.before(10) == UNKNOWN
    found.read(12, UNKNOWN, window_end=10)
    assert found.before(12) == UNKNOWN
    found.read(15, 0, window_end=12)
    assert found.before(15) == 0


def test_of_records_that_the_window_has_passed_nothing_is_kept() -> None:
    """They were held until a look at their topic, and retention moved the window meanwhile."""
    found = epochs(epoch=UNKNOWN)
    found.read(8, 4, window_end=10)
    assert found.before(10) == UNKNOWN
    found.read(12, 4, window_end=10)
    assert found.before(10) == 4


def test_a_gap_between_two_leaders_has_the_later_one() -> None:
    """Kafka says of the earlier one that it ended where the later one began: within the gap."""
    log = dict.fromkeys(range(10), 3) | dict.fromkeys(range(20, 25), 5)
    found = epochs((25, 5), end=10)
    assert [found.before(at) for at in (10, 11, 19, 20)] == [log[9], 5, 5, log[20]]


def test_offsets_behind_the_last_batch_are_known_by_the_readers_word_alone() -> None:
    found = epochs((20, 3))
    assert found.before(21) == UNKNOWN
    found.read(21, 4, window_end=20)
    assert (found.before(20), found.before(21)) == (3, 4)


def test_a_cut_forgets_what_was_read_beyond() -> None:
    found = epochs((20, 3), (30, 5), (40, 6))
    found.cut(25)
    assert [found.before(at) for at in (20, 25, 26)] == [3, 5, UNKNOWN]
    found.read(30, 9, window_end=25)
    assert found.before(30) == 9


def test_kafkas_word_that_it_has_no_higher_epoch_is_taken() -> None:
    found = epochs((20, 3), (30, 5))
    found.cap(4)
    assert [found.before(at) for at in (20, 30)] == [3, 4]


def test_what_the_window_has_passed_is_forgotten() -> None:
    found = epochs((20, 3), (30, 5))
    found.read(40, 6, window_end=31)
    assert [found.before(at) for at in (10, 40)] == [6, 6]


def test_a_truncation_takes_the_epoch_along_to_the_store() -> None:
    head = PartitionHead(0, 10, 3, 10, 0)
    partition = SharePartition(head, owner_epoch=1, settings=PartitionSettings())
    assert partition.head == head
    partition.epochs.read(20, 4, window_end=10)
    assert partition.head.end_leader_epoch == 3
    partition.apply(partition.decide_gap_ahead(20))
    assert partition.head.end_leader_epoch == 4
    assert (partition.may_have(4), partition.may_have(5)) == (True, False)
    partition.apply(partition.decide_truncate(5))
    assert (partition.head.end_offset, partition.head.end_leader_epoch) == (5, 3)
    partition.apply(partition.decide_gap_ahead(9))
    assert partition.head.end_leader_epoch == UNKNOWN, "no batch ends there that was read"
    assert partition.may_have(99)


BATCHES = st.lists(
    # Offsets that are missing before it, its records, by how much its leader's epoch is higher.
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from([0, 0, 0, 1, 2])),
    min_size=1,
    max_size=12,
)


@given(batches=BATCHES, ends=st.lists(st.integers(0, 60), max_size=6), cut=st.integers(0, 80))
def test_no_shown_epoch_makes_kafka_see_a_cut_where_none_is(
    batches: list[tuple[int, int, int]], ends: list[int], cut: int
) -> None:
    """Against Kafka's rule: its answer is below neither the epoch nor the offset that are shown."""
    found, at, epoch = LeaderEpochs(0, UNKNOWN), 0, 0
    starts: list[tuple[int, int]] = [(0, 0)]
    lasts: list[tuple[int, int]] = []
    ends = sorted(ends)
    for gap, records, more in batches:
        if more:
            # A leader's epoch may begin anywhere in the gap before its first record.
            epoch += more
            starts.append((epoch, at))
        at += gap + records
        found.read(at, epoch, window_end=ends[0] if ends and ends[0] <= at else 0)
        lasts.append((at, epoch))
    found.cut(cut)
    for offset in range(max(0, ends[0] if ends else 0), at + 1):
        shown = found.before(offset)
        if shown == UNKNOWN:
            assert offset > cut
            continue
        later = [first for known, first in starts if known > shown]
        end = later[0] if later else at
        assert shown in {known for known, _ in starts}
        assert end >= offset
        # The batch that the offset lies in, or before, wrote it or came later: nothing is missed.
        reaching = lasts[bisect.bisect_left([last for last, _ in lasts], offset)][1]
        assert shown == reaching
