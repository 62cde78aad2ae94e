"""`sharecoord analyze`: jobs on the event log, by table."""

from __future__ import annotations

from typing import Final

import click

from sharecoord.cli.main import Lazy, LazyGroup
from sharecoord.cli.options import FOLDER_CONTEXT

JOBS: Final[dict[str, Lazy]] = {
    "fairness": Lazy("analyze.findings", "Who got what, who starved, how fair it was."),
    "lag": Lazy("analyze.findings", "Who is behind, since when, why, and for how long."),
    "poison": Lazy("analyze.findings", "What fails, how often, and what it costs."),
    "locks": Lazy("analyze.findings", "How long locks are held; which duration would fit."),
    "report": Lazy("analyze.findings", "All findings on one page that opens offline."),
    "timeline": Lazy("analyze.timeline", "The life of a record, a key or a member."),
    "generate": Lazy("analyze.generate", "Make an event log of any size, to try jobs."),
    "what-if": Lazy("analyze.whatif", "Predict what other settings would do."),
}
"""Commands by name; each is imported when it is called."""


@click.group(cls=LazyGroup, table=JOBS, context_settings=FOLDER_CONTEXT)
def analyze() -> None:
    """Find out from events how a group did (Spark).

    Events come from a coordinator with `events.sink: parquet:DIR`. The jobs need
    `pip install 'sharecoord[spark]'` and Java 17; they run on this machine, or on a cluster
    (--master).
    """
