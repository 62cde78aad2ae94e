"""The result of a plan as Markdown for people and as JSON for programs; all targets on one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sharecoord.bench.engine.targets import VERDICT_HEAD, Verdict, verdict_rows, verdict_table
from sharecoord.bench.machine import Machine
from sharecoord.bench.standard.results import Figures, Result
from sharecoord.bench.text import markdown_table, named_values, spread_text, write_json

JSON_NAME: Final = "result.json"
MARKDOWN_NAME: Final = "report.md"
_TRIAL_FIGURES: Final = {
    "commits_per_s": ("transactions/s", ",.0f"),
    "rows_per_s": ("rows/s", ",.0f"),
    "port_open_s": ("port open, s", ".2f"),
    "first_delivery_s": ("first delivery, s", ".2f"),
    "half_served_s": ("half of them served, s", ".2f"),
    "all_served_s": ("all served, s", ".2f"),
    "coordinator_cpu_s": ("CPU of the coordinator, s", ".2f"),
    "peak_mb": ("coordinator at most, MB", ",.0f"),
    "load_per_s": ("load, records/s", ",.0f"),
}
"""Head and form of each figure of a trial."""


def write_report(result: Result, directory: Path) -> None:
    """Writes both files into a directory, which is made when it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / JSON_NAME, named_values(result))
    (directory / MARKDOWN_NAME).write_text(markdown(result), encoding="utf-8")


def markdown(result: Result) -> str:
    """The whole report, with the machine."""
    machine = markdown_table(["what", "value"], result.machine.rows())
    return "\n\n".join([f"# {result.plan}", sections(result), "## Measured on", machine]) + "\n"


def sections(result: Result) -> str:
    """The report without title and machine."""
    parts = [_setup(result)]
    for kind, by_title in result.figures.items():
        parts += [f"### {kind}", _figure_table(by_title)]
    parts += ["### Targets", verdict_table(result.verdicts)]
    if result.core is not None:
        parts += ["### The pure decisions alone", f"```\n{result.core.strip()}\n```"]
    return "\n\n".join(parts)


@dataclass(frozen=True, slots=True)
class Part:
    """The outcome of one of several plans: its verdicts, and its report without the machine."""

    verdicts: Sequence[Verdict]
    report: str


def overview(parts: Mapping[str, Part], machine: Machine) -> str:
    """The targets of several plans in one table, then their reports; by name of the plan."""
    rows = [[plan, *row] for plan, part in parts.items() for row in verdict_rows(part.verdicts)]
    every = [each for part in parts.values() for each in part.verdicts]
    met = sum(each.passed for each in every)
    return "\n\n".join(
        [
            "# All targets",
            f"{met} of {len(every)} are met. All figures of a plan are in the folder of its name.",
            markdown_table(["plan", *VERDICT_HEAD], rows),
            "## Measured on",
            markdown_table(["what", "value"], machine.rows()),
            *(f"## Plan {name}\n\n{part.report}" for name, part in parts.items()),
        ]
    )


def _setup(result: Result) -> str:
    load = result.machine.load_average[0]
    text = (
        f"Repeats: {result.repeats}, interleaved; median (min-max). {result.about} Load average at "
        f"the start: {load:.2f} on {result.machine.cores} cores."
    )
    if not result.complete:
        text = f"**Broken off before the end.** {text}"
    if result.machine.busy:
        text += " **The machine was busy with other work: trust ratios and CPU time, not speeds.**"
    return text


def _figure_table(by_title: Mapping[str, Figures]) -> str:
    names = list(dict.fromkeys(name for figures in by_title.values() for name in figures))
    head = ["store", *(_TRIAL_FIGURES[name][0] for name in names)]
    rows = [
        [title, *(spread_text(figures.get(name), _TRIAL_FIGURES[name][1]) for name in names)]
        for title, figures in by_title.items()
    ]
    return markdown_table(head, rows)
