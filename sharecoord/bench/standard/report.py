"""The result of a plan as Markdown for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sharecoord.bench.engine.figures import PROCESSES, cpu_figure
from sharecoord.bench.standard.plans import WARM_UP_REPEAT
from sharecoord.bench.standard.results import Figures, Result, Run, Summary, Verdict
from sharecoord.bench.text import (
    markdown_table,
    named_values,
    size_text,
    spread_of,
    spread_text,
    write_json,
)

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
    """The whole report."""
    parts = [f"# {result.plan}", _setup(result)]
    if result.summaries:
        parts += ["## Speed and cost", _speed_table(result.summaries, result.compared)]
    for kind, by_title in result.figures.items():
        parts += [f"## {kind}", _figure_table(by_title)]
    parts += ["## Targets", _target_table(result.verdicts)]
    if result.runs:
        parts += ["## Memory of the coordinator", _memory_table(result.runs)]
    if result.core is not None:
        parts += ["## The pure decisions alone", f"```\n{result.core.strip()}\n```"]
    parts += ["## Measured on", markdown_table(["what", "value"], result.machine.rows())]
    return "\n\n".join(parts) + "\n"


def _setup(result: Result) -> str:
    amounts = ", ".join(f"{count:,} x {size_text(size)}" for size, count in result.records.items())
    load = result.machine.load_average[0]
    text = (
        f"Repeats: {result.repeats}, interleaved; median (min-max). {result.about} Load average at "
        f"the start: {load:.2f} on {result.machine.cores} cores."
    )
    if amounts:
        text = (
            f"Records: {amounts}, in batches of at most {result.batch_bytes:,} B. The clock runs "
            "from the first to the last tenth of the records; every group is fresh, and so is "
            f"every coordinator with its store. {text}"
        )
    if not result.complete:
        text = f"**Broken off before the end.** {text}"
    if result.machine.busy:
        text += " **The machine was busy with other work: trust ratios and CPU time, not speeds.**"
    repeated = sum(line.repeated for line in result.summaries)
    if repeated:
        text += f" **{repeated:,} records were handed out more than once.**"
    return text


def _speed_table(lines: Sequence[Summary], compared: str) -> str:
    used = {name for line in lines for name in line.figures}
    processes = [name for name in PROCESSES if cpu_figure(name) in used]
    head = ["value", "consumer", "records/s", compared]
    head += [*(f"CPU s per million: {name}" for name in processes), "all", "first record, s"]
    shown = [*(cpu_figure(name) for name in processes), cpu_figure("total"), "first_record_s"]
    rows = [
        [
            size_text(line.size_bytes),
            line.title,
            spread_text(line.figures["records_per_s"], ",.0f"),
            spread_text(line.ratio, ".2f", "x"),
            *(spread_text(line.figures.get(name), ".2f") for name in shown),
        ]
        for line in lines
    ]
    return markdown_table(head, rows)


def _figure_table(by_title: Mapping[str, Figures]) -> str:
    names = list(dict.fromkeys(name for figures in by_title.values() for name in figures))
    head = ["store", *(_TRIAL_FIGURES[name][0] for name in names)]
    rows = [
        [title, *(spread_text(figures.get(name), _TRIAL_FIGURES[name][1]) for name in names)]
        for title, figures in by_title.items()
    ]
    return markdown_table(head, rows)


def _target_table(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "None of them was measured."
    rows = [
        [
            verdict.title,
            f"{'>=' if verdict.at_least else '<='} {verdict.bound:g} {verdict.unit}",
            spread_text(verdict.measured, ".2f", f" {verdict.unit}"),
            "PASS" if verdict.passed else "**MISS**",
        ]
        for verdict in verdicts
    ]
    return markdown_table(["target", "wanted", "measured", ""], rows)


def _memory_table(runs: Iterable[Run]) -> str:
    counted = [run for run in runs if run.repeat != WARM_UP_REPEAT]
    rows = [["before its first client", _memory(counted, "idle_rss_mb")]]
    for size in dict.fromkeys(run.size_bytes for run in counted):
        own = [run for run in counted if run.size_bytes == size]
        rows.append([f"after a run with {size_text(size)}", _memory(own, "rss_after_mb")])
    return markdown_table(["idle", "resident"], rows)


def _memory(runs: Iterable[Run], figure: str) -> str:
    return spread_text(spread_of(run.figures.get(figure) for run in runs), ".0f", " MB")
