"""A pytest plugin: runs the suites in a fixed order, fast ones first, and prints minutes per suite.

A suite is a folder directly below `tests/`. Loaded by the Makefile with `-p tools.suite_minutes`;
the table comes before pytest's own summary line, which stays the last line of the output.

With `-n 2 --dist loadscope --no-loadscope-reorder` two processes share the files of the first
suites. Then one of them runs what kills processes under load, and the other the integration tests:
both look at the clock, each has a broker of its own, and neither has its files divided. What needs
nothing but processors is divided by files among whoever is ready, with the time that is left
(nice 19): so both processes end within one file of each other.
"""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ORDER = (
    "architecture",
    "unit",
    "property",
    "batches",
    "sdk",
    "contract",
    "helm",
    "perf",
    "differential",
    "acceptance",
    "integration",
    "simulation",
    "analytics",
)

SHARED = frozenset({"architecture", "unit", "property", "batches", "sdk", "contract", "helm"})
"""Suites whose files may run beside each other."""

BESIDE = frozenset({"simulation", "analytics"})
"""Suites that come last: their files, too, may run beside each other, and beside all others."""

ALONE = "alone"
"""The group of what no integration test may be in one process with: it takes the longest."""
LOWEST = 19


def suite_of(nodeid: str) -> str:
    """The suite that a test belongs to: the folder below `tests/`, or "other"."""
    parts = Path(nodeid.split("::", 1)[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else "other"


def rank(suite: str) -> int:
    """The place of a suite in the run; unknown ones come last."""
    return ORDER.index(suite) if suite in ORDER else len(ORDER)


def group_of(nodeid: str) -> str:
    """What stays together: a file, all integration tests, or all others that look at the clock."""
    suite = suite_of(nodeid)
    if suite in SHARED | BESIDE:
        return nodeid.split("::", 1)[0]
    return suite if suite == "integration" else ALONE


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Hands out groups, in the order of the suites."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Lets the tests that look at the clock go first; nothing but suites beside follows here."""
    if hasattr(item.config, "workerinput") and suite_of(item.nodeid) in BESIDE:
        os.nice(LOWEST - os.nice(0))


class SuiteMinutes:
    """Adds up what set-up, call and tear-down of each suite's tests took."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.tests: defaultdict[str, int] = defaultdict(int)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Orders by suite and keeps the (shuffled) order inside each."""
        items.sort(key=lambda item: rank(suite_of(item.nodeid)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds one phase of one test."""
        suite = suite_of(report.nodeid)
        self.seconds[suite] += report.duration
        self.tests[suite] += report.when == "setup"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the table."""
        terminalreporter.section("minutes per suite")
        for suite in sorted(self.seconds, key=rank):
            minutes = self.seconds[suite] / 60
            terminalreporter.write_line(
                f"{suite:<14}{self.tests[suite]:>6} tests {minutes:>7.2f} min"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin's object."""
    config.pluginmanager.register(SuiteMinutes(), "suite-minutes")
