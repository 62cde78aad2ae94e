"""`sharecoord analyze fairness --follow`: the table or lines that it shows while it runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sharecoord.cli.output import Column, cell, columns, note

if TYPE_CHECKING:
    from rich.table import Table

    from sharecoord.analytics.alerts.delivery import Delivery
    from sharecoord.analytics.alerts.rules import Rule
    from sharecoord.analytics.fairness.follow import LiveRow
    from sharecoord.analytics.fairness.settings import FairnessSettings
    from sharecoord.analytics.places import Place

GROUPS_SHOWN_MAX: Final = 40
"""Rows of the live table: those with starved members and the least Jain index first."""
_COLUMNS: Final = columns(
    Column("GROUP", "group_id"), "members starved jain records dwell_p99_ms lag", separator=" "
)
_ONLY: Final = ("watermark", "checkpoint", "alerts", "until_idle", "once")


def check(*, follow: bool, given: Mapping[str, Any]) -> None:
    """Refuses options that do not go together, before Spark starts."""
    if not follow:
        for name in _ONLY:
            if given[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} belongs to --follow")
        return
    if given["once"] and given["until_idle"] is not None:
        raise click.UsageError("--once and --until-idle say two ends: leave one out")
    if given["skip_corrupt"] and isinstance(given["events"], str):
        raise click.UsageError(
            "--skip-corrupt with --follow is for topics: a file that can not be read ends the job, "
            "so that it is seen; move it away"
        )


def rules_of(
    path: Path | None, events: Place, screen: Screen
) -> tuple[list[Rule], Delivery | None]:
    """The rules of `--alerts`, and the delivery of their alerts."""
    if path is None:
        return [], None
    from sharecoord.analytics.alerts.delivery import Delivery
    from sharecoord.analytics.alerts.rules import TargetKind, read_rules

    rules = list(read_rules(path))
    kafka = None if isinstance(events, str) else events.settings
    if kafka is None and any(t.kind is TargetKind.KAFKA for rule in rules for t in rule.to):
        raise click.UsageError(
            f"--alerts {path}: a rule goes to Kafka, and the cluster is that of --events "
            "kafka:TOPIC; here events come from a folder"
        )
    return rules, Delivery(rules, screen.say, kafka=kafka)


def follow_events(settings: FairnessSettings, given: Mapping[str, Any]) -> None:
    """Follows events and shows windows as they close; `given` are the command's values."""
    from sharecoord.analytics.fairness import follow, job
    from sharecoord.analytics.frames import Range
    from sharecoord.analytics.session import running
    from sharecoord.analytics.times import span

    screen = Screen(as_json=given["as_json"], color=not given["no_color"])
    chosen = follow.FollowSettings(
        settings, given["watermark"], given["checkpoint"], given["once"], given["until_idle"]
    )
    rules, delivery = rules_of(given["alerts"], given["events"], screen)
    waits = span(chosen.watermark_of(given["events"]) / 1_000)
    note(f"sharecoord: a window is shown when events {waits} newer than its end have come")
    local = given["master"] is None or given["master"].startswith("local")
    own = follow.LOCAL_SETTINGS if local else None
    with running(job.NAME, given["master"], given["driver_memory"], own) as spark, screen.open():
        result = follow.run(
            spark,
            given["events"],
            given["out"],
            settings=chosen,
            wanted=Range(given["since"], given["until"], given["groups"]),
            rules=rules,
            delivery=delivery,
            show=screen.show,
        )
    for line in result.warnings():
        note(f"sharecoord: warning: {line}")
    if result.alerts:
        note(f"sharecoord: {result.alerts}")


class Screen:
    """Shows windows as they close: in a table that stays in its place, or as lines."""

    def __init__(self, *, as_json: bool, color: bool) -> None:
        self._as_json, self._color = as_json, color
        self._newest: dict[str, LiveRow] = {}
        self._live: Any = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Shows the live table while open, if there is a terminal."""
        if self._as_json or not sys.stdout.isatty():
            yield
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(no_color=not self._color)
        with Live(self._table(), console=console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def say(self, text: str) -> None:
        """A line for people, on stderr."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            note(f"sharecoord: {text}")

    def show(self, rows: list[LiveRow]) -> None:
        """Shows windows that are over, in order of time and groups."""
        if self._live is not None:
            newest = rows[-1]["window_start"]
            self._newest = {r["group_id"]: r for r in rows if r["window_start"] == newest}
            self._live.update(self._table(), refresh=True)
            return
        for row in rows:
            click.echo(_json(row) if self._as_json else _line(row))

    def _table(self) -> Table:
        from rich.table import Table

        from sharecoord.analytics.fairness.follow import window_text

        rows = sorted(
            self._newest.values(),
            key=lambda row: (-row["starved"], 1.0 if row["jain"] is None else row["jain"]),
        )
        title = f"window until {window_text(rows[0])}" if rows else "waiting for the first window"
        left_out = len(rows) - GROUPS_SHOWN_MAX
        caption = f"{left_out} more groups" if left_out > 0 else None
        table = Table(title=title, caption=caption, box=None, header_style="bold")
        for column in _COLUMNS:
            table.add_column(column.title)
        for row in rows[:GROUPS_SHOWN_MAX]:
            table.add_row(*(cell(column.of(row)) for column in _COLUMNS))
        return table


def _line(row: LiveRow) -> str:
    from sharecoord.analytics.fairness.follow import window_text

    figures = " ".join(f"{column.key}={cell(column.of(row))}" for column in _COLUMNS[1:])
    return f"{window_text(row)} {cell(row['group_id'])} {figures}"


def _json(row: LiveRow) -> str:
    from sharecoord.analytics.fairness.follow import window_text

    return json.dumps({**row, "window_end": window_text(row)}, ensure_ascii=False)
