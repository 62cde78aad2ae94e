"""The README's command for an installation from a checkout has all that is not on an index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def project_of(folder: Path) -> tuple[str, set[str]]:
    """Name of a distribution, and the names of those that it needs."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[\[<>=!~; ]", each)[0] for each in project["dependencies"]}
    return project["name"], needed


def test_a_checkout_installs_what_it_needs_of_itself() -> None:
    found = re.search(
        r"^pip install (.*?)\s+# from a checkout$",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert found is not None
    projects = [project_of(ROOT / folder) for folder in found[1].split()]
    names = {name for name, _ in projects}
    own = {need for _, needed in projects for need in needed if need.startswith("sharecoord-")}
    assert "sharecoord" in names
    assert own
    assert own <= names
