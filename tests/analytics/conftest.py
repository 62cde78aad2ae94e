"""One Spark session for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sharecoord.analytics.session import FOR_FEW_ROWS, make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 600
"""Per test; a run of a job takes seconds, but half a minute where all cores are taken."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives the tests of this folder more time than others get."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture
def adaptive(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with adaptive execution, as it is for many rows."""
    spark.conf.set("spark.sql.adaptive.enabled", "true")
    yield spark
    spark.conf.set("spark.sql.adaptive.enabled", "false")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores, with little memory and few partitions."""
    folder: Path = tmp_path_factory.mktemp("spark")
    session = make_session(
        "sharecoord tests",
        master="local[2]",
        driver_memory="1g",
        settings={
            # The commands' tests run compiled.
            **FOR_FEW_ROWS,
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder),
        },
    )
    yield session
    session.stop()
