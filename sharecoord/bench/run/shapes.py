"""One row for each shape of a topic: the plain consumer, Kafka's own share group, this project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from sharecoord.bench.engine.cell import Ack, Cell, Consumer, Mode, canonical, values_text, varied
from sharecoord.bench.engine.figures import PROCESSES, CellSummary, cpu_figure
from sharecoord.bench.run.folder import RunResult
from sharecoord.bench.text import (
    NONE,
    PageMarks,
    Spread,
    figure_text,
    markdown_table,
    size_text,
    spread_text,
)

MARKS: Final = PageMarks(
    "<!-- shapes: begin (written by `sharecoord bench --update`) -->", "<!-- shapes: end -->"
)
RATE: Final = "records_per_s"
CPU: Final = cpu_figure("total")
SHAPE_HEAD: Final = (
    "shape",
    "plain, records/s",
    "Kafka's own, records/s",
    "sharecoord, records/s",
    "ratio",
    "wanted",
    "CPU us, Kafka's own (broker / client)",
    "CPU us, sharecoord (broker / coordinator / client)",
    "CPU ratio",
    "CPU wanted",
    "records per batch",
    "stored bytes per batch",
    "compressed to",
)
"""CPU time is of one record, of all processes, and in brackets of each."""
README_HEAD: Final = (
    "value",
    "batches",
    "compression",
    "plain consumer",
    "Kafka's own",
    "**sharecoord**",
    "ratio",
    "CPU us, Kafka's own",
    "CPU us, **sharecoord**",
    "CPU ratio",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A cell of this project beside the cells that differ in the consumer only.

    Attributes:
        cell: The cell.
        name: Its values in the dimensions in which the cells of the run differ.
        own: Figures of this project.
        peer: Figures of Kafka's own share group.
        plain: Figures of a plain consumer; None when it was not measured.
        ratios: Own figure to the peer's within a repeat, by name of the figure.
        wanted: Promises about these ratios with their mark, by name of the figure.
    """

    cell: Cell
    name: str
    own: Mapping[str, Spread]
    peer: Mapping[str, Spread]
    plain: Mapping[str, Spread] | None
    ratios: Mapping[str, Spread]
    wanted: Mapping[str, str]


def shapes(result: RunResult) -> list[Shape]:
    """The rows of a result; empty where Kafka's own share group was not measured beside ours."""
    if result.settings.mode is not Mode.THROUGHPUT:
        return []
    by_cell = {summary.cell: summary for summary in result.summaries}
    numbers = {cell: number for number, cell in enumerate(result.cells)}
    names = varied(result.cells)
    made = []
    for cell, summary in by_cell.items():
        peer = _beside(by_cell, cell, Consumer.KAFKA_SHARE, result.settings.mode)
        if cell.consumer is not Consumer.SHARECOORD or peer is None:
            continue
        plain = _beside(by_cell, cell, Consumer.PLAIN, result.settings.mode)
        number = numbers[cell]
        made.append(
            Shape(
                cell=cell,
                name=values_text(cell, names) or "the one",
                own=summary.figures,
                peer=peer.figures,
                plain=None if plain is None else plain.figures,
                ratios={
                    ratio.metric: ratio.spread
                    for ratio in result.ratios
                    if ratio.cell == number and ratio.peer == Consumer.KAFKA_SHARE
                },
                wanted={
                    each.figure: f"{each.verdict.wanted} {each.verdict.mark}"
                    for each in result.verdicts
                    if each.cell == number and each.peer == numbers[peer.cell]
                },
            )
        )
    return made


def _beside(
    by_cell: Mapping[Cell, CellSummary], cell: Cell, consumer: Consumer, mode: Mode
) -> CellSummary | None:
    return by_cell.get(canonical(replace(cell, consumer=consumer), mode))


def shape_rows(found: Sequence[Shape]) -> list[list[str]]:
    """The texts of all rows, under `SHAPE_HEAD`."""
    return [
        [
            each.name,
            spread_text((each.plain or {}).get(RATE), ",.0f"),
            spread_text(each.peer.get(RATE), ",.0f"),
            spread_text(each.own.get(RATE), ",.0f"),
            spread_text(each.ratios.get(RATE), ".2f", "x"),
            each.wanted.get(RATE, NONE),
            _cpu_text(each.peer),
            _cpu_text(each.own),
            spread_text(each.ratios.get(CPU), ".2f", "x"),
            each.wanted.get(CPU, NONE),
            figure_text(_median(each.own, "batch_records"), ",.0f"),
            figure_text(_median(each.own, "batch_stored_bytes"), ",.0f"),
            _part(_median(each.own, "value_bytes_per_stored")),
        ]
        for each in found
    ]


def shape_table(found: Sequence[Shape]) -> str:
    """The rows as Markdown."""
    return markdown_table(SHAPE_HEAD, shape_rows(found))


def readme_text(result: RunResult) -> str:
    """A line for each topic, medians of each kind of acknowledgement; and the machine."""
    found, machine = shapes(result), result.machine
    kinds = " / ".join(dict.fromkeys(str(each.cell.ack) for each in found))
    table = markdown_table(README_HEAD, list(_readme_rows(found)))
    text = (
        f"Medians of {result.settings.repeats}, in records/s and us of CPU per record of all "
        f"processes, with {kinds} acknowledgement. Kafka {machine.kafka}, "
        f"{machine.cores} cores ({machine.cpu_model}), {machine.started_at[:10]}, commit "
        f"{machine.commit or 'unknown'}, load average at the start {machine.load_average[0]:.1f}."
    )
    worth = [
        (str(each.cell.compression), value)
        for each in found
        if (value := _median(each.own, "value_bytes_per_stored"))
    ]
    for codec in dict.fromkeys(name for name, _ in worth if name != "none"):
        own = [value for name, value in worth if name == codec]
        text += f" {codec} made values {min(own):.1f} to {max(own):.1f} times smaller."
    return f"{table}\n\n{text}\n"


def _readme_rows(found: Sequence[Shape]) -> Iterator[list[str]]:
    def topic(each: Shape) -> Cell:
        return replace(each.cell, ack=Ack.IMPLICIT)

    for cell, group in groupby(found, topic):
        lines = list(group)

        def both(form: str, figure: str, *figures: Mapping[str, Spread], unit: str = "") -> str:
            values = [_median(each, figure) for each in figures]
            return " / ".join(NONE if each is None else f"{each:{form}}{unit}" for each in values)

        own, peer = [each.own for each in lines], [each.peer for each in lines]
        ratios = [each.ratios for each in lines]
        yield [
            size_text(cell.payload_bytes),
            size_text(round(cell.batch_bytes, -3)),
            str(cell.compression),
            figure_text(_median(lines[0].plain or {}, RATE), ",.0f"),
            both(",.0f", RATE, *peer),
            both(",.0f", RATE, *own),
            f"**{both('.1f', RATE, *ratios, unit='x')}**",
            both(".1f", CPU, *peer),
            both(".1f", CPU, *own),
            both(".2f", CPU, *ratios, unit="x"),
        ]


def _median(figures: Mapping[str, Spread], name: str) -> float | None:
    return figures[name].median if name in figures else None


def _part(value_bytes_per_stored: float | None) -> str:
    return NONE if value_bytes_per_stored is None else f"{1 / value_bytes_per_stored:.2f}"


def _cpu_text(figures: Mapping[str, Spread]) -> str:
    """CPU time of all processes and of each, as in `9.9 (0.7 / 5.9 / 3.4)`."""
    each = [_median(figures, cpu_figure(name)) for name in PROCESSES]
    parts = " / ".join(f"{value:.2f}" for value in each if value is not None)
    total = _median(figures, CPU)
    return NONE if total is None else f"{total:.2f} ({parts})"
