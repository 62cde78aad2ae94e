"""`sharecoord analyze what-if` without events: figures, table, errors, nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.unit.cli.support import run

HEAVY = ("pyspark", "pyarrow", "pandas", "grpc", "sqlalchemy", "confluent_kafka")

# The command as a process of its own; then says which of the heavy modules it loaded.
PROGRAM = """
import sys
from sharecoord.cli.main import main
heavy, sys.argv = sys.argv[1].split(","), ["sharecoord", *sys.argv[2:]]
try:
    main()
finally:
    print("loaded:", *[name for name in heavy if name in sys.modules], file=sys.stderr)
"""


def test_one_point_is_one_object_and_needs_no_spark() -> None:
    arguments = (
        "--consumers 50 --work-ms 5 --dispatch batch_optimized --record-locks 2000"
        " --max-poll-records 500 --seconds 20 --json"
    )
    command = [sys.executable, "-c", PROGRAM, ",".join(HEAVY), "analyze", "what-if"]
    done = subprocess.run(
        [*command, *arguments.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "loaded:"
    found = json.loads(done.stdout)
    assert found["busy"] == pytest.approx(0.076, rel=0.15)
    assert found["jain"] == pytest.approx(0.443, rel=0.15)
    assert found["starved"] == pytest.approx(23, abs=3)
    assert found["rate"] == pytest.approx(760, rel=0.15)
    assert found["settings"]["record_locks"] == 2_000


def test_several_values_make_a_grid_with_a_recommendation() -> None:
    arguments = (
        "--dispatch batch_optimized --consumers 10,20 --consumers 30 --seconds 5 --repeats 1"
    )
    done = run("analyze", "what-if", *arguments.split(), "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert [p["settings"]["consumers"] for p in found["points"]] == [10, 20, 30]
    assert found["recommended"] in found["points"]
    assert "records/s" in found["reason"]


def test_the_table_marks_the_recommended_point() -> None:
    arguments = "--dispatch batch_optimized,fair --consumers 20 --seconds 3 --repeats 1"
    done = run("analyze", "what-if", *arguments.split())
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "records/s" in lines[0]
    assert [line.startswith("*") for line in lines[1:3]] == [False, True]
    assert lines[-1].startswith("--dispatch fair: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--consumers 0", "--consumers 0 is out of bounds: 1 to 100,000"),
        ("--consumers ten", "'ten' is not an integer"),
        ("--consumers 10,,20", "'' is not an integer"),
        ("--dispatch greedy", "'greedy' is not one of fair, batch_optimized, record_limit"),
        ("--record-locks 5", "--record-locks 5 is out of bounds: 100 to 100,000"),
        ("--work-ms nan", "'nan' is not a number"),
        ("--lock-duration soon", "'soon' is not a duration"),
        ("--seconds 0", "--seconds 0 is out of bounds: 1 to 86,400"),
        ("--slow-members 60", "--slow-members 60 of --consumers 50"),
        ("--work-distribution normal", "--work-distribution normal is none of"),
        ("--ordering key --dispatch batch_optimized", "use --dispatch fair"),
        ("--group g", "--group needs --events DIR"),
        ("--repeats 0", "'--repeats'"),
    ],
)
def test_bad_values_are_named_with_their_bounds(arguments: str, message: str) -> None:
    done = run("analyze", "what-if", *arguments.split())
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split())
