"""`sharecoord analyze`: jobs on the event log, by table."""

from __future__ import annotations

from typing import Final

import click

from sharecoord.cli.main import Lazy, LazyGroup
from sharecoord.cli.options import FOLDER_CONTEXT

JOBS: Final[dict[str, Lazy]] = {
    "fairness": Lazy("analyze_fairness", "fairness", "Who got what, who starved, how fair it was."),
    "lag": Lazy("analyze_lag", "lag", "Who is behind, since when, why, and for how long."),
    "poison": Lazy("analyze_poison", "poison", "What fails, how often, and what it costs."),
    "locks": Lazy("analyze_locks", "locks", "How long locks are held; which duration would fit."),
    "report": Lazy("analyze_report", "report", "All findings on one page that opens offline."),
    "timeline": Lazy("analyze_timeline", "timeline", "The life of a record, a key or a member."),
    "generate": Lazy("analyze_generate", "generate", "Make an event log of any size, to try jobs."),
    "what-if": Lazy("analyze_whatif", "what_if", "Predict what other settings would do."),
}
"""A further job is one line here, and a module of its own."""


@click.group(cls=LazyGroup, table=JOBS, context_settings=FOLDER_CONTEXT)
def analyze() -> None:
    """Find out from events how a group did (Spark).

    Events come from a coordinator with `events.sink: parquet:DIR`. The jobs need
    `pip install 'sharecoord[spark]'` and Java 17; they run on this machine, or on a cluster
    (--master).
    """
