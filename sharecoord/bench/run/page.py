"""The HTML page of a result, which needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from sharecoord.bench.engine.cell import Cell, Consumer, Dimension, label, varied
from sharecoord.bench.engine.figures import METRICS, CellSummary, Trial
from sharecoord.bench.engine.stats import percentile
from sharecoord.bench.engine.targets import VERDICT_HEAD, verdict_rows
from sharecoord.bench.run.folder import RunResult
from sharecoord.bench.run.shapes import SHAPE_HEAD, shape_rows, shapes
from sharecoord.bench.text import NONE
from sharecoord.pages.html import document, table
from sharecoord.pages.svg import Bar, Line, bars, lines

# Ours and Kafka's own first: they differ most, also for those who see few colors.
_COLORED: Final = (Consumer.SHARECOORD, Consumer.KAFKA_SHARE, Consumer.PLAIN, Consumer.NONE)
_COLORS: Final = {
    consumer: number for number, consumer in enumerate(dict.fromkeys([*_COLORED, *Consumer]))
}
_PLOTTED: Final = (
    "records_per_s",
    "max_rate_per_s",
    "drain_s",
    "p50_ms",
    "p99_ms",
    "busy_percent",
    "jain_ratio",
    "first_record_s",
    "cpu_total_s_per_million",
)
_HEADLINE: Final = (
    "max_rate_per_s",
    "records_per_s",
    "drain_s",
    "p50_ms",
    "p99_ms",
    "busy_percent",
)
_HEADLINE_OF_MANY: Final = ("jain_ratio", "starved_consumers")
_CPU: Final = "cpu_total_s_per_million"
_BROKER_CPU: Final = "cpu_broker_s_per_million"
_TABLE_FIGURES: Final = 6
"""Number of columns beside the cell's name that fit on a screen of 1,280 px."""
_MOST_LINES: Final = 12
_CURVE_POINTS: Final = 200


def page(result: RunResult) -> str:
    """The whole page."""
    summaries = result.summaries
    names = varied(summary.cell for summary in summaries)
    body = [
        f"<h1>sharecoord bench: {escape(str(result.settings.mode))}</h1>",
        _notes(result),
        "<h2>All cells</h2>",
        *_cell_tables(summaries, names),
        *_shape_table(result),
        *_target_table(result),
        *_ratio_table(result, names),
        "<h2>Side by side</h2>",
        *_bar_plots(summaries, names),
        *_latency_plot(result, names),
        *_fairness_plot(result, names),
        "<h2>Trials</h2>",
        _trial_table(result, names),
        "<h2>Machine</h2>",
        table(["what", "value"], result.machine.rows(), {"value": "text"}),
        "<h2>Settings</h2>",
        f"<pre>{escape(result.settings.to_yaml())}</pre>",
    ]
    return document("sharecoord bench", body)


def _notes(result: RunResult) -> str:
    settings, machine = result.settings, result.machine
    load = machine.load_average[0]
    text = (
        f"{escape(machine.started_at)}. Kafka {escape(machine.kafka)}, {machine.cores} cores. "
        f"{settings.repeats} repeats, interleaved; median (least-greatest). Every trial has a "
        f"fresh group and a fresh coordinator; window of at most {settings.duration_s:g} s after "
        f"at most {settings.warm_up_s:g} s of warm-up."
    )
    parts = [text]
    if not result.complete:
        parts.append('<strong class="warn">Broken off before the end.</strong>')
    if machine.busy:
        parts.append(
            f'<strong class="warn">Load average {load:.2f} at the start: the machine was busy with '
            "other work; trust ratios, not speeds.</strong>"
        )
    if not any(_BROKER_CPU in summary.figures for summary in result.summaries):
        parts.append(
            "The CPU of the broker is not counted: this run did not start it (--kafka), so nobody "
            "knows its process."
        )
    parts += [f"Left out: {escape(reason)}." for reason in result.left_out]
    return "".join(f'<p class="note">{part}</p>' for part in parts)


def _cell_tables(summaries: Sequence[CellSummary], names: Sequence[Dimension]) -> Iterable[str]:
    """The figures of all cells, in tables that are no wider than the page."""
    metrics = [name for name in METRICS if any(name in summary.figures for summary in summaries)]
    for first in range(0, len(metrics), _TABLE_FIGURES):
        shown = metrics[first : first + _TABLE_FIGURES]
        head = ["cell", *(_title(name, summaries) for name in shown)]
        rows = [
            [label(summary.cell, names), *(summary.text(name) for name in shown)]
            for summary in summaries
        ]
        yield table(head, rows)


def _title(name: str, summaries: Iterable[CellSummary]) -> str:
    """Title of a figure; says so where the CPU time of all is without the broker's."""
    title = METRICS[name].title
    if name != _CPU or any(_BROKER_CPU in summary.figures for summary in summaries):
        return title
    return f"{title} but the broker"


def _ratio_table(result: RunResult, names: Sequence[Dimension]) -> Iterable[str]:
    """A row for each cell of ours and each of its peers."""
    texts: dict[tuple[int, str], dict[str, str]] = {}
    for ratio in result.ratios:
        texts.setdefault((ratio.cell, ratio.peer), {})[ratio.metric] = ratio.text
    if not texts:
        return
    metrics = [name for name in METRICS if any(name in row for row in texts.values())]
    rows = [
        [label(result.cells[cell], names), peer, *(row.get(name, NONE) for name in metrics)]
        for (cell, peer), row in texts.items()
    ]
    yield "<h2>Against the peers: ratios within a repeat</h2>"
    head = ["cell", "against", *(_title(name, result.summaries) for name in metrics)]
    yield table(head, rows, {"against": "text"})


def _shape_table(result: RunResult) -> Iterable[str]:
    """A row for each shape: the peers beside each other, their ratio, and what was wanted."""
    found = shapes(result)
    if found:
        yield "<h2>Every shape: plain consumer, Kafka's own share group, sharecoord</h2>"
        yield table(SHAPE_HEAD, _without_stars(shape_rows(found)))


def _target_table(result: RunResult) -> Iterable[str]:
    verdicts = [each.verdict for each in result.verdicts]
    if verdicts:
        head = [title or "verdict" for title in VERDICT_HEAD]
        yield "<h2>Targets</h2>"
        yield table(head, _without_stars(verdict_rows(verdicts)))


def _without_stars(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Texts of a page, which has no Markdown."""
    return [[text.replace("**", "") for text in row] for row in rows]


def _bar_plots(summaries: Sequence[CellSummary], names: Sequence[Dimension]) -> Iterable[str]:
    for name in _PLOTTED:
        rows = [
            Bar(
                label(summary.cell, names),
                *summary.figures[name],
                summary.text(name),
                _COLORS[summary.cell.consumer],
            )
            for summary in summaries
            if name in summary.figures
        ]
        if rows:
            yield f"<h3>{escape(_title(name, summaries))}</h3>{bars(rows)}"


def _latency_plot(result: RunResult, names: Sequence[Dimension]) -> Iterable[str]:
    """Share of records by latency."""
    given: list[Line] = []
    for number, values in list(result.latencies_ms.items())[:_MOST_LINES]:
        percents = [100 * part / _CURVE_POINTS for part in range(_CURVE_POINTS + 1)]
        points = [(percentile(values, percent), percent) for percent in percents]
        given.append(_line(result.cells[number], names, points, given))
    if given:
        title = "Share of records that were with their handler after so long"
        yield f"<h3>{title}</h3>{lines(title, 'ms', '% of records', given, log_x=True)}"


def _line(
    cell: Cell,
    names: Sequence[Dimension],
    points: Sequence[tuple[float, float]],
    before: Sequence[Line],
) -> Line:
    """A line in the color of its consumer; lines of one color get different dashes."""
    color = _COLORS[cell.consumer]
    dash = sum(1 for line in before if line.color == color)
    return Line(label(cell, names), points, color, dash)


def _fairness_plot(result: RunResult, names: Sequence[Dimension]) -> Iterable[str]:
    """Records per consumer, from most to fewest, of each cell's first trial."""
    given: list[Line] = []
    for trial in result.trials:
        cell = result.cells[trial.cell]
        if trial.repeat == 1 and cell.consumers > 1 and cell.consumer is not Consumer.NONE:
            ordered = sorted(trial.per_consumer, reverse=True)
            points = [(float(place), float(count)) for place, count in enumerate(ordered, 1)]
            given.append(_line(cell, names, points, given))
    if given:
        title = "Records per consumer, from most to fewest (first repeat)"
        drawn = given[:_MOST_LINES]
        plot = lines(title, "consumers", "records", drawn, whole_x=True, whole_y=True)
        yield f"<h3>{title}</h3>{plot}"


def _trial_table(result: RunResult, names: Sequence[Dimension]) -> str:
    rows = [
        [
            label(result.cells[trial.cell], names),
            "rehearsal" if trial.repeat == 0 else str(trial.repeat),
            headline(trial),
            f"{trial.load_average:.2f}",
            " ".join(f"{rate:,.0f}{'+' if held else '-'}" for rate, held in trial.probes) or NONE,
        ]
        for trial in result.trials
    ]
    head = ["cell", "repeat", "figures", "load", "rates tried (+ held)"]
    return table(head, rows, {"repeat": "text", "figures": "text long"})


def headline(trial: Trial) -> str:
    """The few figures of a trial that stand in one line."""
    parts = [
        f"{METRICS[name].title} {format(trial.figures[name], METRICS[name].form)}"
        for name in (*_HEADLINE, *(_HEADLINE_OF_MANY if len(trial.per_consumer) > 1 else ()))
        if name in trial.figures
    ]
    return "; ".join(parts)
