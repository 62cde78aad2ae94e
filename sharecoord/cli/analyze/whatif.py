"""`sharecoord analyze what-if`: what would happen under other settings (docs/what-if.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from sharecoord.cli.analyze.options import UtcTime, check_order, spark_options
from sharecoord.cli.options import options
from sharecoord.cli.output import Column, Output, note
from sharecoord.config.values import parse_duration_ms, parse_float, parse_int
from sharecoord.errors import InvalidConfigError

if TYPE_CHECKING:
    from sharecoord.analytics.whatif.model import Prediction
    from sharecoord.analytics.whatif.settings import Scenario

DISPATCHES: Final = ("fair", "batch_optimized", "record_limit")
ORDERINGS: Final = ("unordered", "key", "partition")


def _values(read: Callable[[str], Any]) -> Callable[..., tuple[Any, ...]]:
    """The callback of an option that may be repeated, with values between commas.

    `read` reads a value, or raises ValueError with the end of "it is not …".
    """

    def convert(
        ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
    ) -> tuple[Any, ...]:
        found = []
        for part in (part.strip() for text in given for part in text.split(",")):
            try:
                found.append(read(part))
            except ValueError as error:
                raise click.BadParameter(f"{part!r} is not {error}", ctx, param) from None
        return tuple(found)

    return convert


def _one_of(choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return read


_DIMENSIONS: Final = (
    ("dispatch", _one_of(DISPATCHES), "D", f"{', '.join(DISPATCHES)} (fair)."),
    ("consumers", parse_int, "N", "Members of the group (50; with --events as there were)."),
    ("work-ms", parse_float, "X", "Mean time of a handler, ms (5; with --events as measured)."),
    (
        "record-locks",
        parse_int,
        "N",
        "share.partition.max.record.locks (2000; with fair it grows).",
    ),
    ("max-poll-records", parse_int, "N", "max.poll.records (500; with fair not given)."),
    ("lock-duration", parse_duration_ms, "T", "share.record.lock.duration.ms (30s)."),
    ("ordering", _one_of(ORDERINGS), "O", f"{', '.join(ORDERINGS)} (unordered)."),
    ("failure-ratio", parse_float, "X", "Part of the deliveries that fail and come again (0)."),
    ("rate", parse_float, "X", "Records/s that arrive (a backlog; with --events as measured)."),
    ("partitions", parse_int, "N", "Of the topic (1; with --events as there were)."),
    ("batch-records", parse_int, "N", "Records of a producer batch (what fits into 16 KiB)."),
)
_SINGLE: Final = (
    ("work-distribution", str, "constant, uniform, lognormal[:SIGMA] (constant)."),
    ("slow-members", int, "How many of the consumers are slow (0)."),
    ("slow-work-ms", float, "Mean time of their handlers (10 x --work-ms)."),
    ("payload-bytes", int, "Length of a value (1000)."),
    ("keys", int, "How many keys there are, with --ordering key (1000)."),
    ("overhead-us", float, "What a record takes a member beside its handler (120)."),
    ("seconds", float, "Of virtual time that are measured (20; with --events all, 600 at most)."),
    ("warm-up", float, "Seconds of virtual time before them (8; with --events 0)."),
    ("seed", int, "The same seed gives the same result (1)."),
)
_FIELD_OF: Final = {"lock_duration": "lock_duration_ms", "warm_up": "warm_up_s"}
_EVENTS: Final = (
    click.option("--events", metavar="DIR", help="Replay what was recorded here (needs Spark)."),
    click.option("--group", help="Which group, when the events have several."),
    click.option("--topic", help="Which topic, when the group has several."),
    click.option("--since", type=UtcTime(), help="Replay events from then on (ISO 8601, UTC)."),
    click.option("--until", type=UtcTime(), help="... and before then."),
    click.option("--skip-corrupt", is_flag=True, help="Go on without files that are unreadable."),
)


def _dimension(name: str, read: Callable[[str], Any], letter: str, text: str) -> Any:
    several: dict[str, Any] = {"multiple": True, "metavar": f"{letter}[,{letter}...]"}
    return click.option(f"--{name}", **several, callback=_values(read), help=text)


_scenario_options: Final = options(
    *(_dimension(*each) for each in _DIMENSIONS),
    *(click.option(f"--{name}", type=kind, help=text) for name, kind, text in _SINGLE),
    *_EVENTS,
    spark_options,
)


@click.command("what-if")
@_scenario_options
@click.option(
    "--repeats",
    type=click.IntRange(1, 100),
    help="Simulations of each point, with consecutive seeds; figures are their means (10; of fair "
    "2).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def what_if(*, repeats: int | None, as_json: bool, **given: Any) -> None:
    """Predict rate, fairness and starvation under other settings.

    Simulates a group in virtual time: workers, records, and this project's dispatch or that of
    Kafka's own share groups. Options with [,...] may have several values, and may be given several
    times: all combinations are simulated, and the best one is recommended. Neither a coordinator
    nor Kafka is needed; with --events arrivals and work times are those that were recorded.
    """
    from sharecoord.analytics.whatif.grid import predict

    single = {name.replace("-", "_"): None for name, _, _ in _SINGLE}
    dimensions = {name.replace("-", "_"): () for name, *_ in _DIMENSIONS}
    common = {_FIELD_OF.get(name, name): given[name] for name in single if given[name] is not None}
    values = {_FIELD_OF.get(name, name): given[name] for name in dimensions}
    source = {name: value for name, value in given.items() if name not in {**single, **dimensions}}
    if source["events"] is None:
        for name, value in source.items():
            if value and name != "driver_memory":
                raise click.UsageError(f"--{name.replace('_', '-')} needs --events DIR")
        predictions: Sequence[Prediction] = predict(_points(values, common), repeats)
    else:
        predictions = _replayed(values, common, repeats, source)
    _show(predictions, as_json=as_json)


def _points(values: dict[str, Any], common: dict[str, Any]) -> list[Scenario]:
    from sharecoord.analytics.whatif.settings import grid

    try:
        return grid(values, **common)
    except InvalidConfigError as error:
        raise click.UsageError(error.message) from None


def _replayed(
    values: dict[str, Any], common: dict[str, Any], repeats: int | None, source: dict[str, Any]
) -> Sequence[Prediction]:
    from sharecoord.analytics.frames import Range
    from sharecoord.analytics.session import running
    from sharecoord.analytics.whatif import job
    from sharecoord.analytics.whatif.settings import CONSUMERS_MAX

    check_order(source["since"], source["until"])
    master, memory = source["master"], source["driver_memory"]
    warm_up_s = common.get("warm_up_s", 0.0)
    wanted_s = common["seconds"] + warm_up_s if "seconds" in common else None

    # Settings that are wrong whatever the events are refused before Spark starts.
    _points({**values, "consumers": values["consumers"] or (CONSUMERS_MAX,)}, common)
    with running(job.NAME, master, memory) as spark:
        recorded = job.read(
            spark,
            source["events"],
            wanted=Range(source["since"], source["until"], tuple(filter(None, [source["group"]]))),
            topic=source["topic"],
            seconds=wanted_s,
            skip_corrupt=source["skip_corrupt"],
        )
        known = {"consumers": (recorded.members,), "partitions": (recorded.partitions,)}
        given = {name: each for name, each in values.items() if each}
        seconds = max(recorded.seconds - warm_up_s, 1.0)
        points = _points({**known, **given}, {**common, "warm_up_s": warm_up_s, "seconds": seconds})
        work_as_measured = not values["work_ms"]
        return job.replay(
            spark, recorded, points, repeats=repeats, work_as_measured=work_as_measured, tell=note
        )


def _show(predictions: Sequence[Prediction], *, as_json: bool) -> None:
    from sharecoord.analytics.whatif.advice import reason, recommended

    best = recommended(predictions)
    if as_json:
        points = [prediction.to_json() for prediction in predictions]
        said: dict[str, Any] = (
            points[0]
            if len(points) == 1
            else {"points": points, "recommended": points[best], "reason": reason(predictions)}
        )
        click.echo(json.dumps(said, indent=2))
        return
    columns, rows = _table(predictions, best)
    Output().show(columns, rows)
    click.echo(f"\n{reason(predictions)}")


def _table(
    predictions: Sequence[Prediction], best: int
) -> tuple[list[Column], list[dict[str, Any]]]:
    """A row for each point with the settings that differ; the recommended row has a mark."""
    from sharecoord.analytics.whatif.settings import flag, varied

    named = varied([p.scenario for p in predictions]) or ["dispatch", "consumers"]
    titles = {
        "mark": "",
        **{name: flag(name).removeprefix("--") for name in named},
        "rate": "records/s",
        "busy": "busy",
        "jain": "Jain",
        "starved": "starved",
        "dwell_p50": "dwell p50 ms",
        "dwell_p99": "dwell p99 ms",
        "expired": "locks ended",
    }
    rows = []
    for at, p in enumerate(predictions):
        settings = {name: getattr(p.scenario, name) for name in named}
        rows.append(
            {
                "mark": "*" if at == best and len(predictions) > 1 else " ",
                **{k: "default" if v is None else str(v) for k, v in settings.items()},
                "rate": f"{p.rate:,.0f}",
                "busy": f"{p.busy:.1%}",
                "jain": f"{p.jain:.3f}",
                "starved": f"{p.starved:.1f}",
                "dwell_p50": _ms(p.dwell_p50_ms),
                "dwell_p99": _ms(p.dwell_p99_ms),
                "expired": f"{p.expired:,.0f}",
            }
        )
    return [Column(title, key) for key, title in titles.items()], rows


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"
