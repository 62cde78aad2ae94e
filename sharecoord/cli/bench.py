"""`sharecoord bench`: hands over to `sharecoord.bench`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

import click

from sharecoord.cli.options import FOLDER_CONTEXT, options

_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_OUT: Final = click.option(
    "--out",
    "output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the result, empty or new.",
)
_PLANS: Final = (
    *("shapes", "partitions", "latency", "fairness", "members", "stores", "security"),
    *("kafka-port", "kafka-port-latency"),
    *("parts", "recovery", "restart", "all"),
)
_UPDATE: Final = click.option(
    "--update",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PAGE",
    help="Put the table of shapes between the marks of this page.",
)
_STRICT: Final = click.option("--strict", is_flag=True, help="Exit with 1 when a target is missed.")
_DIMENSIONS: Final = (
    ("consumer", "plain, kafka-share, kafka-port, parallel-consumer, sharecoord, none (no queue)."),
    ("consumers", "How many of them."),
    ("partitions", "Of the topic."),
    ("payload-bytes", "Length of each value."),
    ("batch-bytes", "Of a producer's record batches (16384)."),
    ("compression", "none, gzip, snappy, lz4, zstd."),
    ("work-ms", "Mean time of a handler, in milliseconds."),
    ("work-distribution", "constant, uniform, lognormal:SIGMA."),
    ("max-poll-records", "default or numbers."),
    ("record-locks", "share.partition.max.record.locks: default or numbers."),
    ("ack", "implicit, explicit."),
    ("parallelism", "blocking, blocking:N, continuous:N."),
    ("key-skew", "none or Zipf exponents."),
    ("keys", "How many keys there are with key-skew."),
    ("ordering", "unordered, key, partition (continuous:N)."),
    ("rate", "Records/s (mode latency)."),
    ("handler", "record, batch:N (workers with continuous:N)."),
    ("client", "threads, tasks (asynchronous members)."),
    ("events", "none, parquet, kafka: where the coordinator's events go."),
    ("store", "sqlite, postgresql, mariadb: where the coordinator's state is."),
    ("security", "none, socket, rules: whether the coordinator asks who may do what."),
)


@click.group(invoke_without_command=True, context_settings=FOLDER_CONTEXT)
@click.option(
    "--plan",
    type=click.Choice(_PLANS),
    help="What is measured (shapes).",
)
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(1),
    multiple=True,
    help="Bytes per value (repeatable; shapes, stores).",
)
@click.option("--records", type=click.IntRange(1), help="Records of a topic (shapes, stores).")
@click.option("--repeats", type=click.IntRange(1), help="How often everything is measured.")
@_OUT
@click.option("--kafka", metavar="HOST:PORT", help="A cluster with share groups (Kafka 4.2+).")
@click.option(
    "--batch-bytes", type=click.IntRange(1), help="Bytes per record batch (shapes, stores)."
)
@click.option("--quick", is_flag=True, help="A look, not a result.")
@_UPDATE
@_STRICT
@click.pass_context
def bench(ctx: click.Context, /, **given: Any) -> None:
    """Measure against peers on one broker, in one run.

    Without a command: the plan whose figures stand in the README (one consumer against Kafka's own
    share group in every shape of a topic), or that of --plan, or all that have targets. `run`
    measures any combination of settings.
    """
    # An option that was not given has the benchmark's own default.
    said = {name: value for name, value in given.items() if value not in (None, ())}
    if ctx.invoked_subcommand is None:
        run = importlib.import_module("sharecoord.bench.standard.run").run
        ctx.exit(int(run(**said) or 0))
    for name in (name for name, value in said.items() if value):
        flag = {"sizes": "--size", "output": "--out"}.get(name, f"--{name.replace('_', '-')}")
        raise click.UsageError(
            f"{flag} stands before {ctx.invoked_subcommand}: options of a command follow it"
        )


_dimension_options: Final = options(
    *(click.option(f"--{name}", metavar="V[,V...]", help=text) for name, text in _DIMENSIONS)
)


@bench.command("run")
@click.option(
    "--plan", metavar="NAME|FILE", help="A plan that ships, or a YAML file; flags win over it."
)
@click.option(
    "--mode",
    type=click.Choice(["throughput", "latency", "drain", "max-rate"]),
    help="What is measured (throughput).",
)
@_dimension_options
@click.option("--records", type=int, help="Records of a backlog.")
@click.option("--duration", "duration_s", type=float, help="Seconds that are measured (20).")
@click.option("--warm-up", "warm_up_s", type=float, help="Seconds before, from the first record.")
@click.option("--repeats", type=int, help="How often each cell is measured (3).")
@click.option("--rehearsal/--no-rehearsal", default=None, help="One uncounted trial per consumer.")
@click.option("--p99-ms", type=float, help="Bound of max-rate (25).")
@click.option("--min-rate", type=float, help="Least rate that max-rate tries (200).")
@click.option("--max-rate", type=float, help="Greatest one (50000).")
@click.option("--steps", type=int, help="Most rates that max-rate tries (8).")
@click.option("--seed", type=int, help="Of work times and keys (1).")
@click.option("--per-process", type=int, help="Consumers in one process.")
@click.option("--kafka", metavar="HOST:PORT", help="A cluster; without it a broker is started.")
@_OUT
@_UPDATE
@_STRICT
@click.pass_context
def bench_run(
    ctx: click.Context,
    /,
    plan: str | None,
    output: Path | None,
    update: Path | None,
    *,
    strict: bool,
    **given: object,
) -> None:
    """Measure every combination of the given values.

    Options with V[,V...] are dimensions: each may have several values, and all combinations are
    measured, interleaved. See docs/benchmark.md.
    """
    run = importlib.import_module("sharecoord.bench.run.course").run
    said = {name: value for name, value in given.items() if value is not None}
    ctx.exit(int(run(said, plan=plan, output=output, update=update, strict=strict)))


@bench.command("compare")
@click.argument("first", metavar="A", type=_FOLDER)
@click.argument("second", metavar="B", type=_FOLDER)
@click.pass_context
def bench_compare(ctx: click.Context, first: Path, second: Path) -> None:
    """Print the cells that two results have, with ratio and whether their ranges overlap."""
    ctx.exit(int(importlib.import_module("sharecoord.bench.run.course").compare(first, second)))


@bench.command("capacity")
@click.option(
    "--only",
    metavar="NAME[,NAME...]",
    help="disk, record, worker, store, member, partition, group, fanout.",
)
@click.option("--kafka", metavar="HOST:PORT", help="A cluster; without it a broker is started.")
@click.option(
    "--update",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PAGE",
    help="Put the tables between the marks of this page.",
)
@click.option("--quick", is_flag=True, help="A look, not a result.")
@_OUT
@click.pass_context
def bench_capacity(ctx: click.Context, /, **given: Any) -> None:
    """Measure what records, members, share-partitions and groups cost.

    See docs/capacity.md.
    """
    ctx.exit(int(importlib.import_module("sharecoord.bench.capacity.run").run(**given)))


@bench.command("jobs")
@click.option(
    "--events", default="1000000,10000000", show_default=True, metavar="N[,N...]", help="Of a log."
)
@click.option("--only", metavar="NAME[,NAME...]", help="fairness, lag, poison, locks.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--logs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the logs are made and kept for the next run.",
)
@click.option("--driver-memory", default="4g", show_default=True, help="Memory of Spark.")
@_OUT
@click.pass_context
def bench_jobs(ctx: click.Context, /, **given: Any) -> None:
    """Measure the jobs on events against a bare groupBy over the same files.

    Needs Java and pyspark. See docs/benchmark.md.
    """
    ctx.exit(int(importlib.import_module("sharecoord.bench.jobs").run(**given)))
