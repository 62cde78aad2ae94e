"""A pytest plugin: runs the suites in a fixed order, fast ones first, and prints minutes per suite.

A suite is a folder directly below `tests/`. Loaded by the Makefile with `-p tools.suite_minutes`;
the table comes before pytest's own summary line, which stays the last line of the output.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

ORDER = (
    "architecture",
    "unit",
    "golden",
    "property",
    "sdk",
    "contract",
    "helm",
    "integration",
    "simulation",
    "differential",
    "acceptance",
    "analytics",
    "perf",
)


def suite_of(nodeid: str) -> str:
    """The suite that a test belongs to: the folder below `tests/`, or "other"."""
    parts = Path(nodeid.split("::", 1)[0]).parts
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else "other"


def rank(suite: str) -> int:
    """The place of a suite in the run; unknown ones come last."""
    return ORDER.index(suite) if suite in ORDER else len(ORDER)


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
