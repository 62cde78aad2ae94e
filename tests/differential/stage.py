"""Plays the scripts that a run wants on the sides that are compared, so many at a time."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import pytest

from sharecoord.devenv.topics import Topics
from tests.conftest import note
from tests.differential.player import Outcome, Player, expected
from tests.differential.script import Script
from tests.differential.sides import Side

SEED_VARIABLE: Final = "SCRIPT_SEED"
AT_ONCE = 20
SCRIPT_S = 600.0
PLAYS, PLAYS_WITH_VOID = 2, 6
"""How often a script is played at most, and how often where plays were void."""

_given = [int(text) for text in os.environ.get(SEED_VARIABLE, "").split(",") if text]


def seeds_of(count: int) -> Sequence[int]:
    """So many seeds, or those of the environment."""
    return _given or range(count)


class Stage:
    """Plays the scripts of a test, so many at a time, on all sides of one cluster."""

    def __init__(
        self,
        bootstrap_servers: str,
        sides: Sequence[Side],
        seeds: Sequence[int],
        at_once: int = AT_ONCE,
    ) -> None:
        self._sides = sides
        self._bootstrap_servers = bootstrap_servers
        # A writer for each thread: making a producer costs more than its records.
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(at_once, initializer=self._begin)
        self._played = {seed: self._submit(seed) for seed in seeds}
        self._again: list[int] = []

    def _begin(self) -> None:
        self._local.topics = Topics(self._bootstrap_servers)

    def _submit(self, seed: int) -> list[Future[Outcome]]:
        return [self._pool.submit(self._play, side, seed) for side in self._sides]

    def _play(self, side: Side, seed: int) -> Outcome:
        return Player(side, self._local.topics, Script(seed)).play()

    def judge(self, seed: int) -> None:
        """Waits for a script and compares all sides, with what the script says too.

        One that differs is played once more with nobody beside it: on a machine that has no time
        for all of them locks end that should not, and only what differs again is a difference.
        """
        paper, plays = expected(Script(seed)), 1
        while plays < self._plays_max(seed, paper):
            wait(itertools.chain(*self._played.values()), SCRIPT_S)
            self._played[seed] = self._submit(seed)
            self._again.append(seed)
            plays += 1
        outcomes = [future.result(SCRIPT_S) for future in self._played[seed]]
        transcripts = itertools.chain(*(each.transcript for each in outcomes))
        print("\n".join([*Script(seed).describe(), *transcripts]))
        assert [each.failure for each in outcomes] == [""] * len(outcomes), seed
        for side, outcome in zip(self._sides, outcomes, strict=True):
            assert outcome.histories == paper.histories, f"{side.name}, seed {seed}: histories"
            assert outcome.answers == paper.answers, f"{side.name}, seed {seed}: answers"

    def _plays_max(self, seed: int, paper: Outcome) -> int:
        """How often a script may be played, by what came of its last play."""
        outcomes = [future.result(SCRIPT_S) for future in self._played[seed]]
        if all(_agrees(each, paper) for each in outcomes):
            return 0
        return PLAYS_WITH_VOID if any(each.is_void for each in outcomes) else PLAYS

    def close(self) -> None:
        """Waits for what is under way, drops the rest; says what was played twice."""
        self._pool.shutdown(cancel_futures=True)
        if self._again:
            names = ", ".join(f"{side.name} ({side.module})" for side in self._sides)
            again = sorted(self._again)
            note(f"scripts that differed and were played again, alone: {again} on {names}")


def _agrees(outcome: Outcome, paper: Outcome) -> bool:
    same = (outcome.histories, outcome.answers) == (paper.histories, paper.answers)
    return same and not outcome.failure


def selected_seeds(request: pytest.FixtureRequest, test: str, **others: str) -> list[int]:
    """The seeds of a test that were selected, in the order of the run.

    `others` are those of its other parameters that are meant.
    """
    return [
        int(str(item.callspec.params["seed"]))
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == test
        and others.items() <= item.callspec.params.items()
    ]
