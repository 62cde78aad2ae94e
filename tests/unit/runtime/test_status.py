"""What the board knows of the audit trail, of watched files and of certificates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import structlog

from sharecoord.errors import InvalidConfigError
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.security.audit import AuditFigures
from sharecoord.security.files import FileWatch, WatchedFiles
from sharecoord.security.quotas import Quotas, Use
from sharecoord.security.rules import Quota
from sharecoord.testing.virtual_time import run_virtual, virtual
from tests.unit.runtime.worlds import world_with
from tests.world import running


@virtual
async def test_a_coordinator_without_them_has_no_figures_of_them() -> None:
    board = StatusBoard()
    async with running(world_with(0)) as coordinator:
        board.update(coordinator)
    latest = board.latest
    assert latest is not None
    assert (latest.audit, latest.files_refused, latest.certificate_days) == (None, {}, {})


@virtual
async def test_what_principals_with_quotas_use_is_told() -> None:
    board, world = StatusBoard(), world_with(0)
    async with running(world) as coordinator:
        coordinator.context.guard.quotas = Quotas(lambda _: Quota(members=2), lambda: 0.0)
        member = await world.joined(coordinator)
        board.update(coordinator)
        assert board.latest is not None
        assert board.latest.principals == {"User:anonymous": Use(1, 0, 0)}
        member.joined_group.leave(member.joined_session)
        board.update(coordinator)
        assert board.latest.principals == {}


def test_the_newest_figures_are_shown_and_make_nobody_unready(tmp_path: Path) -> None:
    run_virtual(shown(tmp_path))


async def shown(tmp_path: Path) -> None:
    def read(contents: Mapping[str, bytes]) -> bytes:
        if contents["security.rules.file"] == b"bad":
            raise InvalidConfigError("line 3")
        return b""

    path = tmp_path / "rules.yaml"
    path.write_bytes(b"good")
    rules, watch = WatchedFiles({"security.rules.file": str(path)}, read), FileWatch()
    watch.add(rules)
    board = StatusBoard()
    board.audit = lambda: AuditFigures(7, 2, is_failing=True)
    board.file_problems = watch.problems
    board.certificate_days = lambda: {"tls.cert.file": -0.5}
    async with running(world_with(0)) as coordinator:
        board.update(coordinator)
        assert board.latest is not None
        assert board.latest.audit == AuditFigures(7, 2, is_failing=True)
        assert board.latest.files_refused == {"security.rules.file": False}
        assert board.latest.certificate_days == {"tls.cert.file": -0.5}
        path.write_bytes(b"bad")
        with structlog.testing.capture_logs():
            rules.look()
        board.update(coordinator)
        assert board.latest.files_refused == {"security.rules.file": True}
        assert board.ready
