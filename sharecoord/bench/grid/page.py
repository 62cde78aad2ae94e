"""One HTML page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from sharecoord.bench.grid.cell import Consumer, Dimension, label, varied
from sharecoord.bench.grid.figures import METRICS, CellSummary, Ratio, Trial
from sharecoord.bench.grid.folder import GridResult
from sharecoord.bench.grid.stats import percentile
from sharecoord.bench.grid.svg import Bar, Line, bars, lines
from sharecoord.bench.machine import Machine

_COLORS: Final = {
    Consumer.SHARECOORD: 0,
    Consumer.KAFKA_SHARE: 1,
    Consumer.PLAIN: 2,
    Consumer.NONE: 3,
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
_MOST_LINES: Final = 12
_CURVE_POINTS: Final = 200
_BUSY_PER_CORE: Final = 0.25
_STYLE: Final = """
:root{color-scheme:light dark;--fg:#1d2733;--bg:#fff;--dim:#66727f;--line:#d9dfe5}
@media(prefers-color-scheme:dark){:root{--fg:#dfe6ee;--bg:#14191f;--dim:#93a1af;--line:#303a45}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);
max-width:980px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}h3{font-size:1rem;margin:1.4rem 0 .2rem}
p.note{color:var(--dim)}strong.warn{color:#c2410c}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;white-space:nowrap}
td,th{border-bottom:1px solid var(--line);padding:.25rem .6rem;text-align:right}
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:var(--bg)}
svg{width:100%;height:auto;font-size:12px}svg text{fill:var(--fg)}
.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line);fill:none}.whisker{stroke:var(--fg);fill:none}
.c0{fill:#2563eb}.c1{fill:#ea8a1f}.c2{fill:#4b9b6b}.c3{fill:#8a94a0}.c4{fill:#a855f7}
.l0,.l1,.l2,.l3,.l4{fill:none;stroke-width:2}
.l0{stroke:#2563eb}.l1{stroke:#ea8a1f}.l2{stroke:#4b9b6b}.l3{stroke:#8a94a0}.l4{stroke:#a855f7}
pre{font-size:12px;overflow-x:auto;border:1px solid var(--line);padding:.8rem}
"""


def page(result: GridResult) -> str:
    """The whole page."""
    summaries = result.summaries
    names = varied(summary.cell for summary in summaries)
    body = [
        f"<h1>sharecoord bench: {escape(str(result.settings.mode))}</h1>",
        _notes(result),
        "<h2>All cells</h2>",
        _cell_table(summaries, names),
        *_ratio_table(result, names),
        "<h2>Side by side</h2>",
        *_bar_plots(summaries, names),
        *_latency_plot(result, names),
        *_fairness_plot(result, names),
        "<h2>Trials</h2>",
        _trial_table(result, names),
        "<h2>Machine</h2>",
        _table(["what", "value"], _machine_rows(result.machine)),
        "<h2>Settings</h2>",
        f"<pre>{escape(result.settings.to_yaml())}</pre>",
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>sharecoord bench</title><style>{_STYLE}</style></head><body>"
        + "\n".join(body)
        + "</body></html>\n"
    )


def _notes(result: GridResult) -> str:
    settings, machine = result.settings, result.machine
    load = machine.load_average[0]
    text = (
        f"{escape(machine.started_at)}. Kafka {escape(machine.kafka)}, {machine.cores} cores. "
        f"{settings.repeats} repeats, interleaved; median (least-greatest). Every trial has a "
        f"fresh group and a fresh coordinator; window of {settings.duration_s:g} s after "
        f"{settings.warm_up_s:g} s of warm-up."
    )
    parts = [text]
    if not result.complete:
        parts.append('<strong class="warn">Broken off before the end.</strong>')
    if load > _BUSY_PER_CORE * machine.cores:
        parts.append(
            f'<strong class="warn">Load average {load:.2f} at the start: the machine was busy with '
            "other work; trust ratios, not speeds.</strong>"
        )
    parts += [f"Left out: {escape(reason)}." for reason in result.left_out]
    return "".join(f'<p class="note">{part}</p>' for part in parts)


def _cell_table(summaries: Sequence[CellSummary], names: Sequence[Dimension]) -> str:
    metrics = [name for name in METRICS if any(name in summary.figures for summary in summaries)]
    head = ["cell", *(METRICS[name].title for name in metrics)]
    rows = [
        [label(summary.cell, names), *(spread_text(summary, name) for name in metrics)]
        for summary in summaries
    ]
    return _table(head, rows)


def spread_text(summary: CellSummary, name: str) -> str:
    """Median (least-greatest) of a metric; `-` when a cell has none."""
    spread = summary.figures.get(name)
    if spread is None:
        return "-"
    median, low, high = (format(value, METRICS[name].form) for value in spread)
    return median if low == high else f"{median} ({low}-{high})"


def ratio_text(ratio: Ratio) -> str:
    """Median (least-greatest), as in `2.50x (2.40-2.60)`."""
    median, low, high = (format(value, ".2f") for value in ratio.spread)
    return f"{median}x" if low == high else f"{median}x ({low}-{high})"


def _ratio_table(result: GridResult, names: Sequence[Dimension]) -> Iterable[str]:
    rows = [
        [
            label(result.cells[ratio.cell], names),
            str(ratio.peer),
            METRICS[ratio.metric].title,
            ratio_text(ratio),
        ]
        for ratio in result.ratios
    ]
    if rows:
        yield "<h2>Against the peers, within a repeat</h2>"
        yield _table(["cell", "against", "figure", "ratio"], rows)


def _bar_plots(summaries: Sequence[CellSummary], names: Sequence[Dimension]) -> Iterable[str]:
    for name in _PLOTTED:
        rows = [
            Bar(
                label(summary.cell, names),
                *summary.figures[name],
                spread_text(summary, name),
                _COLORS[summary.cell.consumer],
            )
            for summary in summaries
            if name in summary.figures
        ]
        if rows:
            title = METRICS[name].title
            yield f"<h3>{escape(title)}</h3>{bars(title, rows)}"


def _latency_plot(result: GridResult, names: Sequence[Dimension]) -> Iterable[str]:
    """Share of records by latency."""
    given: list[Line] = []
    for number, values in list(result.latencies_ms.items())[:_MOST_LINES]:
        percents = [100 * part / _CURVE_POINTS for part in range(_CURVE_POINTS + 1)]
        points = [(percentile(values, percent), percent) for percent in percents]
        given.append(Line(label(result.cells[number], names), points, len(given)))
    if given:
        title = "Share of records that were with their handler after so long"
        yield f"<h3>{title}</h3>{lines(title, 'ms', '% of records', given, log_x=True)}"


def _fairness_plot(result: GridResult, names: Sequence[Dimension]) -> Iterable[str]:
    """Records per consumer, from most to fewest, of each cell's first trial."""
    given: list[Line] = []
    for trial in result.trials:
        cell = result.cells[trial.cell]
        if trial.repeat == 1 and cell.consumers > 1 and cell.consumer is not Consumer.NONE:
            ordered = sorted(trial.per_consumer, reverse=True)
            points = [(float(place), float(count)) for place, count in enumerate(ordered, 1)]
            given.append(Line(label(cell, names), points, len(given)))
    if given:
        title = "Records per consumer, from most to fewest (first repeat)"
        plot = lines(title, "consumers", "records", given[:_MOST_LINES], log_x=False)
        yield f"<h3>{title}</h3>{plot}"


def _trial_table(result: GridResult, names: Sequence[Dimension]) -> str:
    rows = [
        [
            label(result.cells[trial.cell], names),
            "rehearsal" if trial.repeat == 0 else str(trial.repeat),
            headline(trial),
            f"{trial.load_average:.2f}",
            " ".join(f"{rate:,.0f}{'+' if held else '-'}" for rate, held in trial.probes) or "-",
        ]
        for trial in result.trials
    ]
    return _table(["cell", "repeat", "figures", "load", "rates tried (+ held)"], rows)


def headline(trial: Trial) -> str:
    """The few figures of a trial that stand in one line."""
    parts = [
        f"{METRICS[name].title} {format(trial.figures[name], METRICS[name].form)}"
        for name in (*_HEADLINE, *(_HEADLINE_OF_MANY if len(trial.per_consumer) > 1 else ()))
        if name in trial.figures
    ]
    return "; ".join(parts)


def _machine_rows(machine: Machine) -> list[list[str]]:
    packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    return [
        ["CPU", f"{machine.cpu_model}, {machine.cores} cores"],
        ["memory", f"{machine.memory_mb:,} MB"],
        ["kernel", machine.kernel],
        ["Python", machine.python],
        ["Kafka", machine.kafka],
        ["librdkafka", machine.librdkafka],
        ["SQLite", f"{machine.sqlite}, on {machine.store_file_system}"],
        ["packages", packages],
        ["commit", machine.commit or "unknown"],
        ["load average", ", ".join(f"{value:.2f}" for value in machine.load_average)],
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'
