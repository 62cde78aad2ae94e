"""The figures, ratios, shapes and targets of a result as text: for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sharecoord.bench.engine.cell import label, varied
from sharecoord.bench.engine.figures import METRICS
from sharecoord.bench.engine.targets import verdict_table
from sharecoord.bench.run.folder import RunResult
from sharecoord.bench.run.shapes import shape_table, shapes
from sharecoord.bench.text import NONE, markdown_table

_SHOWN: Final = (
    "max_rate_per_s",
    "records_per_s",
    "drain_s",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "max_ms",
    "busy_percent",
    "jain_ratio",
    "fewest_records",
    "most_records",
    "starved_consumers",
    "cpu_total_s_per_million",
)
_MEMORY: Final = ("idle_rss_mb", "coordinator_peak_mb", "member_kb", "joined_s")


def lines(result: RunResult) -> str:
    """A line for each cell and each ratio, then the shapes and the targets."""
    names = varied(result.cells)
    listed = []
    for summary in result.summaries:
        parts = [f"{name} {summary.text(name)}" for name in _SHOWN if name in summary.figures]
        listed.append(f"{label(summary.cell, names)}: " + ", ".join(parts))
    for ratio in result.ratios:
        figure = f"{ratio.metric} {ratio.text}"
        listed.append(f"{label(result.cells[ratio.cell], names)} against {ratio.peer}: {figure}")
    return "\n\n".join(["\n".join(listed), *_shapes(result), *_targets(result)])


def markdown(result: RunResult) -> str:
    """The whole report, with the machine."""
    machine = markdown_table(["what", "value"], result.machine.rows())
    title = f"# sharecoord bench: {result.settings.mode}"
    return "\n\n".join([title, sections(result), "## Measured on", machine]) + "\n"


def sections(result: RunResult) -> str:
    """The report without title and machine."""
    settings, machine = result.settings, result.machine
    text = (
        f"Repeats: {settings.repeats}, interleaved; median (least-greatest). Load average at the "
        f"start: {machine.load_average[0]:.2f} on {machine.cores} cores."
    )
    if not result.complete:
        text = f"**Broken off before the end.** {text}"
    if machine.busy:
        text += " **The machine was busy with other work: trust ratios and CPU time, not speeds.**"
    text = " ".join([text, *(f"Left out: {reason}." for reason in result.left_out)])
    parts = [text]
    for title, tables in (
        ("Every shape", _shapes(result)),
        ("Targets", _targets(result)),
        ("Figures", _figures(result)),
        ("Against the peers: ratios within a repeat", _ratios(result)),
    ):
        parts += [f"### {title}\n\n{table}" for table in tables]
    return "\n\n".join(parts)


def _shapes(result: RunResult) -> Iterator[str]:
    if found := shapes(result):
        yield shape_table(found)


def _targets(result: RunResult) -> Iterator[str]:
    if verdicts := [each.verdict for each in result.verdicts]:
        yield verdict_table(verdicts)


def _figures(result: RunResult) -> Iterator[str]:
    names = varied(result.cells)
    summaries = result.summaries
    head = _titles({name for each in summaries for name in each.figures}, (*_SHOWN, *_MEMORY))
    rows = [[label(each.cell, names), *(each.text(name) for name in head)] for each in summaries]
    if rows:
        yield markdown_table(["cell", *(METRICS[name].title for name in head)], rows)


def _ratios(result: RunResult) -> Iterator[str]:
    names = varied(result.cells)
    texts: dict[tuple[int, str], dict[str, str]] = {}
    for ratio in result.ratios:
        texts.setdefault((ratio.cell, ratio.peer), {})[ratio.metric] = ratio.text
    head = _titles({name for row in texts.values() for name in row}, tuple(METRICS))
    rows = [
        [label(result.cells[cell], names), peer, *(row.get(name, NONE) for name in head)]
        for (cell, peer), row in texts.items()
    ]
    if rows:
        yield markdown_table(["cell", "against", *(METRICS[name].title for name in head)], rows)


def _titles(used: set[str], known: Sequence[str]) -> list[str]:
    return [name for name in known if name in used]
