"""Files are promised up to the limit, less what is kept for those who are served already."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from sharecoord.errors import LimitExceededError
from sharecoord.runtime.kernel.open_files import OpenFiles, count_open, raise_limit
from tests.unit.admin.support import Bench, virtual

READER = 8
"""With one broker."""


def files(limit: int, is_open: int, *, brokers: int = 1) -> OpenFiles:
    return OpenFiles(limit, brokers=brokers, count=lambda: is_open)


def test_groups_cost_a_reader_and_members_a_connection() -> None:
    tight = files(1000, 900 - 2 * (READER + 1))
    tight.check_member(needs_reader=True)
    tight.check_member(needs_reader=True)
    with pytest.raises(LimitExceededError) as raised:
        tight.check_member(needs_reader=False)
    assert raised.value.retriable
    assert raised.value.retry_after_ms
    for part in ("900 of 1000", "100 are kept", "a member needs 1 more", "ulimit -n"):
        assert part in str(raised.value)
    tight.look()
    tight.check_member(needs_reader=False)
    with pytest.raises(LimitExceededError, match="a group without members needs 9 more"):
        files(1000, 895).check_member(needs_reader=True)


def test_each_broker_makes_a_reader_dearer() -> None:
    with pytest.raises(LimitExceededError, match="needs 36 more"):
        files(1000, 880, brokers=10).check_member(needs_reader=True)


def test_readers_of_groups_that_came_in_have_half_of_what_is_kept() -> None:
    late = files(1000, 950 - 2 * READER)
    assert [late.may_read() for _ in range(3)] == [True, True, False]
    late.look()
    assert late.may_read()


def test_a_low_limit_keeps_a_quarter() -> None:
    files(100, 66).check_member(needs_reader=True)
    with pytest.raises(LimitExceededError):
        files(100, 67).check_member(needs_reader=True)


def test_what_is_used_up_is_said() -> None:
    assert files(100, 92).problem == ""
    assert "93 of 100 files are open" in files(100, 93).problem


def test_that_nothing_can_be_counted_for_want_of_a_file_is_no_room() -> None:
    def count() -> int:
        raise OSError(24, "Too many open files")

    assert OpenFiles(100, brokers=1, count=count).problem
    assert OpenFiles(100, brokers=1, count=lambda: None).problem == ""


def test_the_soft_limit_is_raised_and_a_low_one_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"now": (1024, 1_000_000_000)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.update(now=new))
    with capture_logs() as lines:
        assert raise_limit() == 1 << 20
    assert limits["now"] == (1 << 20, 1_000_000_000)
    assert lines == []
    limits["now"] = 256, 2048
    with capture_logs() as lines:
        assert raise_limit() == 2048
    assert [each["event"] for each in lines] == ["few open files"]
    assert (lines[0]["limit"], limits["now"]) == (2048, (2048, 2048))


def test_files_are_counted() -> None:
    before = count_open()
    if before is None:
        pytest.skip("this system does not say how many files are open")
    with open(__file__, encoding="utf-8"), open(__file__, encoding="utf-8"):  # noqa: PTH123
        assert count_open() == before + 2


@virtual
async def test_a_new_member_is_refused_and_a_known_one_may_come_back(at: Bench) -> None:
    await at.member("m1", "one")
    at.coordinator.context.files = files(1000, 900)
    with pytest.raises(LimitExceededError, match="a group without members"):
        await at.member("m2", "two")
    with pytest.raises(LimitExceededError, match="a member needs 1"):
        await at.member("m3", "one")
    assert {row.group_id for row in at.world.store.load_groups()} == {"one"}
    await at.member("m1", "one")
