"""What is done for every event is code that the JVM compiles: it interprets long methods."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pytest

from sharecoord.analytics import census
from sharecoord.analytics.attempts import attempts
from sharecoord.analytics.fairness import transform as fairness
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.lag import transform as lag
from sharecoord.analytics.lag.settings import LagSettings
from sharecoord.analytics.names import numbered
from sharecoord.analytics.poison import transform as poison
from tests.analytics.support import frame, handed, sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HUGE_METHOD_BYTES: Final = 8_000
"""HotSpot compiles no longer ones (HugeMethodLimit); Spark itself thinks of 65,535."""

PASSES: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "census": census.census,
    "census by numbers": lambda events: census.census(numbered(events)),
    "attempts": attempts,
    "samples of members": lambda events: fairness.samples(numbered(events)),
    "what was handed out": lambda events: fairness.acquired(numbered(events), FairnessSettings()),
    "timings": lambda events: fairness.timings(numbered(events)),
    "samples of share-partitions": lambda events: lag.samples(events, LagSettings()),
    "changes": lambda events: lag.changes(events, LagSettings()),
    "troubles": poison.troubles,
}


@pytest.fixture
def compiling(spark: SparkSession) -> Iterator[SparkSession]:
    """As for many events; without adaptive execution, which shows its code at run time alone."""
    wanted = {
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
        "spark.sql.adaptive.enabled": "false",
    }
    before = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.parametrize("name", PASSES)
def test_no_method_is_too_long_to_be_compiled(
    compiling: SparkSession, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    events = frame(compiling, [handed(1, "a", 5), sample(1, "a", 5, 5)])
    capsys.readouterr()
    PASSES[name](events).explain(mode="codegen")
    sizes = re.findall(r"maxMethodCodeSize:(\d+)", capsys.readouterr().out)
    assert sizes, "no code is made"
    assert max(map(int, sizes)) < HUGE_METHOD_BYTES / 2
