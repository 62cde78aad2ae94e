"""`python -m sharecoord.bench`: the benchmark without the rest of the command line."""

from __future__ import annotations

import sys

from sharecoord.bench.main import main

if __name__ == "__main__":
    sys.exit(main())
