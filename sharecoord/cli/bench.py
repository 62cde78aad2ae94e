"""`sharecoord bench`: hands over to `sharecoord.bench.main`."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from sharecoord.cli.options import debug_option


@click.command()
@click.option(
    "--size", "sizes", type=click.IntRange(1), multiple=True, help="Bytes per value (repeatable)."
)
@click.option("--records", type=click.IntRange(1), help="Records per size.")
@click.option("--repeats", type=click.IntRange(1), help="How often everything is measured.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the result, empty or new.",
)
@click.option("--kafka", metavar="HOST:PORT", help="A cluster with share groups (Kafka 4.2+).")
@click.option("--quick", is_flag=True, help="A look, not a result.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a target is missed.")
@debug_option
@click.pass_context
def bench(
    ctx: click.Context,
    sizes: tuple[int, ...],
    records: int | None,
    repeats: int | None,
    output: Path | None,
    kafka: str | None,
    quick: bool,  # noqa: FBT001 - Click calls by name
    strict: bool,  # noqa: FBT001
) -> None:
    """Measure throughput against peers on one broker, in one run."""
    given = {
        "sizes": sizes or None,
        "records": records,
        "repeats": repeats,
        "output": output,
        "kafka": kafka,
        "quick": quick,
        "strict": strict,
    }
    run = importlib.import_module("sharecoord.bench.main").run
    # What was not given is the benchmark's own default.
    code = run(**{name: value for name, value in given.items() if value is not None})
    ctx.exit(int(code or 0))
