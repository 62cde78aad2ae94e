"""What is installed beside this project: its licences, its known vulnerabilities, its hashes.

`python -m tools.dependencies check` looks, without a network, at the installed distributions, at
constraints.txt and at requirements.lock; each finding is a line, and makes the exit code 1.
`… requirements` prints what the container image asks for, of which `make lock` makes
requirements.lock. `… advisories FOLDER` writes tools/advisories.yaml anew from a checkout of
https://github.com/pypa/advisory-database.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "requirements.lock"
LICENCES = ROOT / "tools" / "licences.yaml"
ADVISORIES = ROOT / "tools" / "advisories.yaml"

IMAGE_EXTRAS = ("postgres", "mysql", "otel", "events")
"""Extras of the server that the container image has."""
INSTALLERS = ("pip", "setuptools")
"""They install the rest, and are in no requirement of the project's own."""

Event = Mapping[str, str]
"""An event of OSV's ranges: `introduced`, `fixed` or `last_affected`, and a version."""

_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"\s+--hash=sha256:[0-9a-f]{64}")


def pins(path: Path = CONSTRAINTS) -> dict[str, str]:
    """Exact versions in a file of requirements, by canonical name."""
    found = map(_PINNED.match, path.read_text(encoding="utf-8").splitlines())
    return {canonicalize_name(match[1]): match[2] for match in found if match is not None}


# -- licences -------------------------------------------------------------------------------------


def licence_of(found: Distribution, words: Mapping[str, str]) -> str:
    """The licence that a distribution states, as an SPDX expression; else its own words, or ""."""
    data = found.metadata
    if expression := data.get("License-Expression"):
        return str(expression)
    stated = str(data.get("License") or "").strip().partition("\n")[0]
    classified = [each.rpartition(" :: ")[2] for each in data.get_all("Classifier") or ()
                  if each.startswith("License :: ")]  # fmt: skip
    known = [words[each] for each in (stated, *classified) if each in words]
    return known[0] if known else stated or ", ".join(classified)


def licence_findings(installed: Iterable[Distribution], rules: Mapping[str, Any]) -> Iterator[str]:
    """A line for each distribution whose licence nobody has allowed."""
    for each in installed:
        name = canonicalize_name(each.metadata["Name"])
        licence = licence_of(each, rules["words"])
        allowed = {*rules["allowed"], rules["named"].get(name)}
        # Of alternatives one is enough; of what holds together each has to be allowed.
        choices = [choice.split(" AND ") for choice in licence.split(" OR ")]
        if not any(allowed.issuperset(part.strip("() ") for part in choice) for choice in choices):
            yield (
                f"{name} {each.version}: its licence is {licence or 'not stated'}, which "
                "tools/licences.yaml does not allow"
            )


# -- vulnerabilities ------------------------------------------------------------------------------


def is_affected(version: str, events: Sequence[Event]) -> bool:
    """Whether a version lies in one of the ranges, as OSV's schema evaluates them."""
    wanted, affected = Version(version), False
    for event in sorted(events, key=lambda each: Version(next(iter(each.values())))):
        (kind, text), at = next(iter(event.items())), Version(next(iter(event.values())))
        if kind == "introduced" and wanted >= at:
            affected = True
        elif (kind == "fixed" and wanted >= at) or (kind == "last_affected" and wanted > at):
            affected = False
        elif kind not in ("introduced", "fixed", "last_affected"):
            raise ValueError(f"unknown event {kind} {text}")
    return affected


def advisory_findings(
    pinned: Mapping[str, str], advisories: Iterable[Mapping[str, Any]]
) -> Iterator[str]:
    """A line for each pinned version that an advisory tells of."""
    for each in advisories:
        version = pinned.get(each["package"])
        if version is not None and is_affected(version, each["events"]):
            names = ", ".join([each["id"], *each.get("aliases", ())])
            yield f"{each['package']} {version} is vulnerable: {names}"


def read_advisories(folder: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The advisories about these packages in a checkout of PyPA's database, without withdrawn."""
    folders = (folder / "vulns" / name for name in sorted(names))
    for path in (path for each in folders for path in sorted(each.glob("*.yaml"))):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        name = path.parent.name
        ranges = [
            each
            for affected in found["affected"]
            if canonicalize_name(affected["package"]["name"]) == name
            for each in affected.get("ranges", ())
            if each["type"] == "ECOSYSTEM"
        ]
        events = [event for each in ranges for event in each["events"]]
        if events and "withdrawn" not in found:
            known = {"aliases": found["aliases"]} if found.get("aliases") else {}
            yield {"package": name, "id": found["id"], **known, "events": events}


def write_advisories(folder: Path, output: Path = ADVISORIES) -> None:
    """Writes what the database says of pinned packages; what was written by hand stays."""
    text = output.read_text(encoding="utf-8")
    head, mark, _ = text.partition("# -- from the database\n")
    commit = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%H %cs"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    found = list(read_advisories(folder, pins()))
    lines = [yaml.safe_dump(each, default_flow_style=True, sort_keys=False, width=10**6).strip()
             for each in found]  # fmt: skip
    body = "".join(f"  - {line}\n" for line in lines)
    output.write_text(
        f"{head}{mark}commit: {commit[0]}\ncommit_date: {commit[1]}\ndatabase:\n{body}",
        encoding="utf-8",
    )


# -- hashes ---------------------------------------------------------------------------------------


def image_requirements() -> list[str]:
    """What the image needs from a registry: of the server with its extras, the SDK, batches."""
    server, sdk, batches = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for folder in (".", "sdk", "sdk/batches")
    )
    found = [*server["dependencies"], *sdk["dependencies"], *INSTALLERS]
    for extra in IMAGE_EXTRAS:
        found += server["optional-dependencies"][extra]
    for each in batches["optional-dependencies"].values():
        found += each
    return sorted({text for text in found if not text.startswith("sharecoord-")})


def lock_findings(lock: str, wanted: Iterable[str], pinned: Mapping[str, str]) -> Iterator[str]:
    """A line for each requirement that requirements.lock does not pin as it should."""
    hashes: dict[str, int] = {}
    name = ""
    for line in lock.splitlines():
        if match := _PINNED.match(line):
            name = canonicalize_name(match[1])
            hashes[name] = 0
            if pinned.get(name) != match[2]:
                other = pinned.get(name, "no such line")
                yield f"{name}: requirements.lock has {match[2]}, constraints.txt {other}"
        elif _HASH.match(line):
            hashes[name] += 1
    missing = [each for each in wanted if canonicalize_name(_name(each)) not in hashes]
    yield from (f"{each} is not in requirements.lock: run make lock" for each in missing)
    yield from (f"{each} has no hash: run make lock" for each, count in hashes.items() if not count)


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


# -- all of it ------------------------------------------------------------------------------------


def findings() -> Iterator[str]:
    """Every finding, as a line."""
    known = yaml.safe_load(ADVISORIES.read_text(encoding="utf-8"))
    yield from licence_findings(distributions(), yaml.safe_load(LICENCES.read_text("utf-8")))
    yield from advisory_findings(pins(), [*known["by_hand"], *known["database"]])
    yield from lock_findings(LOCK.read_text("utf-8"), image_requirements(), pins())


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit code."""
    match arguments:
        case ["requirements"]:
            print("\n".join(image_requirements()))
        case ["advisories", folder]:
            write_advisories(Path(folder))
        case ["check"]:
            found = sorted(set(findings()))
            print("\n".join(found) or "licences, advisories and hashes: no finding")
            return 1 if found else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
