"""Names that scripts rely on: `--json` prints those that the documentation of the job promises."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from sharecoord.analytics.fairness import job as fairness
from sharecoord.analytics.lag import job as lag
from sharecoord.analytics.locks import job as locks
from sharecoord.analytics.poison import job as poison
from sharecoord.analytics.timeline import job as timeline
from sharecoord.analytics.whatif.model import simulate
from sharecoord.analytics.whatif.settings import Scenario

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
JOBS: Final = {
    "fairness": fairness,
    "lag": lag,
    "poison": poison,
    "locks": locks,
    "timeline": timeline,
}


@pytest.mark.parametrize(("name", "job"), JOBS.items(), ids=JOBS)
def test_the_documented_names_are_printed(name: str, job: ModuleType) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    promise = re.search(r"`--json` prints of each [^.]+", text)
    assert promise is not None
    assert tuple(re.findall(r"`(\w+)`", promise.group())) == job.JSON_KEYS


def test_a_prediction_has_the_figures_at_the_top() -> None:
    found = simulate(Scenario(consumers=2, seconds=1, warm_up_s=0)).to_json()
    assert {"rate", "busy", "jain", "starved"} <= set(found)
