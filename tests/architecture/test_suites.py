"""Which tests run in which process, and in which order (`make test`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.suite_minutes import ALONE, BESIDE, ORDER, SHARED, group_of, rank

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/unit/core/test_a.py::test_x[1]", "tests/unit/core/test_a.py"),
        ("tests/contract/test_b.py::TestC::test_y", "tests/contract/test_b.py"),
        ("tests/integration/test_d.py::test_z", "integration"),
        ("tests/acceptance/test_e.py::test_z[a::b]", ALONE),
        ("tests/simulation/test_f.py::test_z", "tests/simulation/test_f.py"),
        ("tests/analytics/test_g.py::test_z", "tests/analytics/test_g.py"),
        ("elsewhere/test_h.py::test_z", ALONE),
    ],
)
def test_what_stays_together(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_shared_suites_come_first_and_every_suite_has_its_place() -> None:
    there = {path.name for path in TESTS.iterdir() if (path / "__init__.py").is_file()}
    assert there <= set(ORDER)
    others = set(ORDER) - SHARED
    assert max(map(rank, SHARED)) < min(map(rank, others))
    # Whoever has run one of these has the lowest priority from then on.
    assert max(map(rank, others - BESIDE)) < min(map(rank, BESIDE))
