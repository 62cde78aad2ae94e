"""`sharecoord demo`: hands over to `sharecoord.demo.main`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--kafka", metavar="HOST:PORT", help="Use this Kafka cluster.")
@click.option(
    "--kafka-real", "real", is_flag=True, help="Start a real broker (needs Java or Docker)."
)
@click.option("--records", type=click.IntRange(1), help="How many records to produce.")
@click.option("--workers", type=click.IntRange(1), help="How many workers to run.")
@click.option("--plain", is_flag=True, help="Plain lines instead of a live screen.")
@click.option("--seed", type=int, help="Seed of all that is random.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a page about the run (needs sharecoord[spark] and Java 17).",
)
@click.pass_context
def demo(ctx: click.Context, /, **given: Any) -> None:
    """Show what it does: workers share a partition, one dies, nothing is lost.

    Without options it needs nothing but this package.
    """
    if given["kafka"] and given["real"]:
        raise click.UsageError("--kafka and --kafka-real exclude each other: give one of them.")
    run = importlib.import_module("sharecoord.demo.main").run
    # An option that was not given has the demo's own default.
    code = run(**{name: value for name, value in given.items() if value is not None})
    ctx.exit(int(code or 0))
