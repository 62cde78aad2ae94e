"""`python -m sharecoord.bench.capacity`: the command without the rest of the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sharecoord.bench.capacity.figures import Section
from sharecoord.bench.capacity.run import run
from sharecoord.errors import SharecoordError


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, measures; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sharecoord bench capacity",
        description="Measures what records, members, share-partitions and groups cost.",
    )
    parser.add_argument("--only", metavar="NAME[,NAME...]", help=f"of {', '.join(Section)}")
    parser.add_argument("--output", type=Path, help="directory of the result")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a cluster; without it a broker")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="put the tables there")
    parser.add_argument("--quick", action="store_true", help="a look, not a result")
    given = parser.parse_args(argv)
    try:
        return run(
            only=given.only,
            output=given.output,
            kafka=given.kafka,
            update=given.update,
            quick=given.quick,
        )
    except SharecoordError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
