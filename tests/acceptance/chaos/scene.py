"""What most fault tests begin with: a topic, a group, a coordinator of their own, and a crew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharecoord_sdk.admin import AdminClient

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.verdict import DELIVERY_LIMIT
from tests.support import eventually, unique_name

LOCK_MS = 3_000
FAST_SETTINGS: dict[str, object] = {
    # Records of a killed worker are back after this time, not after 30 s.
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.delivery.count.limit": DELIVERY_LIMIT,
    "log.format": "json",
}


@dataclass(frozen=True, slots=True)
class Scene:
    """A coordinator that serves, and the tools around it.

    Attributes:
        broker: The Kafka behind it, a process of ours.
        topics: Creates and fills topics of it.
        coordinator: Serves on SQLite.
        directory: For more files.
    """

    broker: KafkaBroker
    topics: Topics
    coordinator: CoordinatorProcess
    directory: Path

    @contextmanager
    def crew(self, **options: float | str) -> Iterator[Crew]:
        """Workers of a new group on a new topic, which is deleted afterwards."""
        name = unique_name("t")
        self.topics.create(name)
        given: dict[str, object] = {"address": self.coordinator.address, **options}
        with ExitStack() as stack:
            stack.callback(self.topics.delete, name)
            made = Crew(self.directory / name, group=unique_name("g"), topic=name, **given)  # type: ignore[arg-type]
            yield stack.enter_context(made)


def configure(coordinator: CoordinatorProcess, group: str, **settings: object) -> None:
    """Sets settings of a group, which need not exist; `_` in names stands for `.`."""
    given = {name.replace("_", "."): str(value) for name, value in settings.items()}
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, given)


def passed(since_s: float, wait_s: float) -> Callable[[], bool]:
    """A probe for `eventually`: whether so much time is over."""
    return lambda: time.monotonic() - since_s >= wait_s


def let_pass(wait_s: float) -> None:
    """A fault that lasts: waits so long, with nothing asserted about the time itself."""
    eventually(passed(time.monotonic(), wait_s), wait_s + 30.0, f"{wait_s} s are over")
