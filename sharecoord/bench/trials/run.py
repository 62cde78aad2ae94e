"""Executes the trials of a plan: a fresh store and a fresh coordinator for each."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sharecoord.bench.plans.plan import Plan, Trial, TrialKind
from sharecoord.bench.results import TrialRun
from sharecoord.bench.runner import Cluster
from sharecoord.bench.topic_data import fill_topic
from sharecoord.bench.trials import recovery, restart
from sharecoord.bench.trials.commits import QUICK_SECONDS, SECONDS, measure_commits
from sharecoord.bench.trials.recovery import measure_recovery
from sharecoord.bench.trials.restart import measure_restart
from sharecoord.devenv.stores import Stores
from sharecoord.devenv.topics import Topics

_CREATE_S: Final = 120.0


class TrialRunner:
    """Runs the trials of a plan; deletes its topics at the end."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        scratch: Path,
        stores: Stores,
        say: Callable[[str], None],
        *,
        quick: bool,
    ) -> None:
        """Nothing is started yet; arguments as of `Runner`.

        Args:
            plan: What to run.
            cluster: Where.
            scratch: An existing directory on a disk, for the coordinators' files.
            stores: Makes their stores.
            say: Takes one line per step of progress.
            quick: Whether transactions are counted for a shorter time.
        """
        self._plan = plan
        self._cluster = cluster
        self._scratch = scratch
        self._stores = stores
        self._say = say
        self._seconds = QUICK_SECONDS if quick else SECONDS
        self._topics = Topics(cluster.bootstrap_servers, timeout_s=_CREATE_S)
        self._made: dict[tuple[int, int], str] = {}

    def run(self) -> Iterator[TrialRun]:
        """Makes all runs, gives each as soon as it is done.

        Raises:
            SharecoordError: A coordinator, a store or the cluster failed.
        """
        try:
            for trial, repeat in self._plan.trial_steps():
                load_average = os.getloadavg()[0]
                with self._stores.fresh(trial.store) as url, self._directory() as directory:
                    figures = self._measure(trial, url, directory)
                self._say(f"{trial.kind}, run {repeat}, {trial.title}: {_said(figures)}")
                yield TrialRun(trial.key, repeat, figures, load_average)
        finally:
            self._topics.delete(*self._made.values())

    def _measure(self, trial: Trial, url: str, directory: Path) -> dict[str, float]:
        address = self._cluster.bootstrap_servers
        if trial.kind is TrialKind.COMMITS:
            return measure_commits(
                url, partitions=trial.partitions, ranges=trial.ranges, seconds=self._seconds
            )
        if trial.kind is TrialKind.RECOVERY:
            topic = self._topic(trial.partitions, trial.ranges + 1, recovery.VALUE_BYTES)
            return measure_recovery(
                url,
                trial,
                bootstrap_servers=address,
                topic=topic,
                topic_id=self._topics.topic_id(topic),
                directory=directory,
            )
        return measure_restart(
            url,
            bootstrap_servers=address,
            topic=self._topic(1, trial.records, restart.VALUE_BYTES),
            records=trial.records,
            directory=directory,
        )

    def _topic(self, partitions: int, records: int, value_bytes: int) -> str:
        """A topic with so many records in each partition, made at its first use."""
        name = self._made.get((partitions, records))
        if name is None:
            name = f"bench-trial-{uuid.uuid4().hex[:8]}"
            self._say(f"producing {partitions:,} x {records:,} records of {value_bytes} B")
            self._topics.create(name, partitions=partitions)
            self._made[partitions, records] = name
            fill_topic(
                self._cluster.bootstrap_servers,
                name,
                records,
                value_bytes=value_bytes,
                batch_bytes=self._plan.batch_bytes,
                partitions=partitions,
            )
        return name

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            yield Path(name)


def _said(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())
