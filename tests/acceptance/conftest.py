"""A coordinator process per module, in front of the session's broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from tests.support import KafkaUnderTest


@pytest.fixture(scope="module")
def coordinator(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorProcess]:
    """`sharecoord serve` on SQLite, earliest by default."""
    directory = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, directory) as process:
        yield process
