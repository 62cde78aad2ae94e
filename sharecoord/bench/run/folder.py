"""The folder of a result: settings, machine, raw samples, summary, page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from sharecoord.bench.engine.cell import Cell, Mode
from sharecoord.bench.engine.figures import CellSummary, Ratio, Trial, peer_ratios, summarize
from sharecoord.bench.engine.samples import NO_LATENCY
from sharecoord.bench.engine.settings import Settings
from sharecoord.bench.engine.targets import CellVerdict, judge
from sharecoord.bench.engine.trial import Outcome
from sharecoord.bench.machine import Machine
from sharecoord.bench.text import write_json
from sharecoord.errors import InvalidConfigError

SETTINGS_NAME: Final = "settings.yaml"
MACHINE_NAME: Final = "machine.json"
SAMPLES_NAME: Final = "samples.parquet"
SUMMARY_NAME: Final = "summary.json"
PAGE_NAME: Final = "report.html"
REPORT_NAME: Final = "report.md"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class RunResult:
    """All results of a run but the raw samples.

    Attributes:
        settings: What was asked for.
        machine: The machine of the run.
        cells: Cells of the run.
        left_out: Combinations that can not be, in words.
        trials: In the order in which they were made.
        complete: Whether the run came to its end.
        latencies_ms: By cell, ascending, thinned out for the plot; empty in other modes.
    """

    settings: Settings
    machine: Machine
    cells: Sequence[Cell]
    left_out: Sequence[str]
    trials: Sequence[Trial]
    complete: bool
    latencies_ms: Mapping[int, Sequence[float]]

    @property
    def summaries(self) -> list[CellSummary]:
        """Summaries by cell."""
        return summarize(self.cells, self.trials)

    @property
    def ratios(self) -> list[Ratio]:
        """This project's cells against their peers."""
        return peer_ratios(self.cells, self.trials, self.settings.mode)

    @property
    def verdicts(self) -> list[CellVerdict]:
        """The targets that could be judged."""
        return judge(self.settings.targets, self.cells, self.trials, self.settings.mode)


def load_pyarrow() -> tuple[Any, Any]:
    """Pyarrow and its Parquet module; InvalidConfigError when they are not installed."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise InvalidConfigError(
            "pyarrow is missing, which writes the raw samples: pip install 'sharecoord[bench]'"
        ) from error


class SampleFile:
    """Raw samples of all trials, one Parquet file; closed by the `with` block."""

    def __init__(self, path: Path) -> None:
        """Opens the file; InvalidConfigError when pyarrow is not installed."""
        self._arrow, parquet = load_pyarrow()
        arrow = self._arrow
        self._schema = arrow.schema(
            [
                ("cell", arrow.int16()),
                ("repeat", arrow.int8()),
                ("consumer", arrow.int32()),
                ("records", arrow.int32()),
                ("began_s", arrow.float64()),
                ("busy_ms", arrow.float32()),
                ("latency_ms", arrow.float32()),
            ]
        )
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, outcome: Outcome) -> None:
        """Writes the samples of one trial, times relative to the begin of its window."""
        samples, trial = outcome.samples, outcome.trial
        columns = {
            "cell": [trial.cell] * len(samples),
            "repeat": [trial.repeat] * len(samples),
            "consumer": samples.consumer,
            "records": samples.records,
            "began_s": [(at - outcome.window.begin_ns) / 1e9 for at in samples.began_ns],
            "busy_ms": [busy / 1e6 for busy in samples.busy_ns],
            "latency_ms": [
                None if each == NO_LATENCY else each / 1e6 for each in samples.latency_ns
            ],
        }
        self._writer.write_table(self._arrow.Table.from_pydict(columns, schema=self._schema))


def write_summary(result: RunResult, directory: Path) -> None:
    """Writes settings, machine and summary."""
    (directory / SETTINGS_NAME).write_text(result.settings.to_yaml(), encoding="utf-8")
    write_json(directory / MACHINE_NAME, asdict(result.machine))
    write_json(
        directory / SUMMARY_NAME,
        {
            "format": _FORMAT,
            "mode": str(result.settings.mode),
            "complete": result.complete,
            "left_out": list(result.left_out),
            "machine": asdict(result.machine),
            "cells": [asdict(summary) for summary in result.summaries],
            "ratios": [asdict(ratio) for ratio in result.ratios],
            "verdicts": [asdict(verdict) for verdict in result.verdicts],
            "trials": [asdict(trial) for trial in result.trials],
        },
    )


class ReadSummary(NamedTuple):
    """The part of a result folder that is compared."""

    name: str
    mode: Mode
    cells: Sequence[CellSummary]
    commit: str
    cpu_model: str


def read_summary(directory: Path) -> ReadSummary:
    """Reads the files of `write_summary`; InvalidConfigError when there is no such result."""
    path = directory / SUMMARY_NAME
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        if read["format"] != _FORMAT:
            raise ValueError(f"format {read['format']}")
        return ReadSummary(
            name=str(directory),
            mode=Mode(read["mode"]),
            cells=[CellSummary.from_json(each) for each in read["cells"]],
            commit=str(read["machine"]["commit"]),
            cpu_model=str(read["machine"]["cpu_model"]),
        )
    except OSError as error:
        raise InvalidConfigError(
            f"{directory}: has no {SUMMARY_NAME}; name a folder that `sharecoord bench run` wrote"
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidConfigError(f"{path}: is not a result of this release: {error}") from error
