"""`sharecoord analyze generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sharecoord.cli.analyze.options import spark_options
from sharecoord.cli.output import note


@click.command()
@click.option("--out", required=True, metavar="DIR", help="A new or empty folder.")
@click.option("--events", type=int, required=True, metavar="N", help="Rows at most.")
@click.option("--groups", type=int, default=10, show_default=True, help="Share groups.")
@click.option("--members", type=int, default=20, show_default=True, help="Members per group.")
@click.option("--partitions", type=int, default=8, show_default=True, help="Partitions per topic.")
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same rows.")
@click.option("--hours", type=float, help="From the first event to the last (as events need).")
@click.option(
    "--skew",
    type=float,
    default=0.0,
    metavar="ZIPF",
    help="Zipf exponent over the members (0: all alike).",
)
@click.option(
    "--starved", type=int, default=0, metavar="K", help="Members that starve from some time on."
)
@click.option(
    "--poison-keys", type=int, default=0, metavar="K", help="Keys whose records always fail."
)
@click.option("--lag-spikes", type=int, default=0, metavar="K", help="Times of high lag.")
@click.option(
    "--drop", type=float, default=0.0, metavar="FRACTION", help="Changes that are missing."
)
@spark_options
def generate(out: str, master: str | None, driver_memory: str, **given: Any) -> None:
    """Make an event log of any size, to try jobs.

    What was planted stands in DIR/_truth.json.
    """
    from sharecoord.analytics.generate import job
    from sharecoord.analytics.generate.plan import GeneratorSettings, make_plan
    from sharecoord.analytics.session import running

    settings = GeneratorSettings(**given)
    make_plan(settings)  # refuses settings that do not fit before Spark starts
    with running(job.NAME, master, driver_memory) as spark:
        found = job.run(spark, out, settings)
    if "://" not in out:
        from sharecoord.app import event_tools

        event_tools(Path(out)).roll_up()
    note(f"{found['rows']} events in {out}, what is planted in {out}/{job.TRUTH}")
