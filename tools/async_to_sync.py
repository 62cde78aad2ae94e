"""Generates the SDK's synchronous modules out of the asynchronous ones, which are written by hand.

`python -m tools.async_to_sync` writes them; `--check` fails when one is not what its source gives.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDK = ROOT / "sdk" / "sharecoord_sdk"
MODULES = {SDK / "_async" / "admin.py": SDK / "_sync" / "admin.py"}

NAMES = {
    "AsyncAdminClient": "AdminClient",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aspeaks_kafka": "speaks_kafka",
    "open_aio_channel": "open_channel",
}
REWRITES = (
    (re.compile(r"\b(?:async|await)\s+"), ""),
    (re.compile(r"\bgrpc\.aio\b"), "grpc"),
    (re.compile(r"\.close\(None\)"), ".close()"),
    (re.compile(rf"\b(?:{'|'.join(NAMES)})\b"), lambda found: NAMES[found.group()]),
)
TEXTS = {
    tokenize.STRING,
    tokenize.COMMENT,
    # The parts of f-strings, from Python 3.12 on.
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),
}


def rewritten(source: str) -> str:
    """The code with its words for asyncio exchanged; texts and comments stay as they are."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    pieces, position = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXTS:
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            pieces += [_code(source[position:begin]), source[begin:end]]
            position = end
    return "".join([*pieces, _code(source[position:])])


def _code(text: str) -> str:
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    return text


def generated(source: Path) -> str:
    """The synchronous module, in the project's format."""
    name = source.relative_to(SDK)
    text = f"# Generated from {name} by tools/async_to_sync.py; `make sync` writes it.\n"
    text += rewritten(source.read_text(encoding="utf-8"))
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        call = [*ruff, *command, "--stdin-filename", str(MODULES[source]), "-"]
        found = subprocess.run(
            call, input=text, capture_output=True, text=True, check=True, cwd=ROOT
        )
        text = found.stdout
    return text


def main() -> int:
    """Writes, or with `--check` compares; returns the exit code."""
    stale = []
    for source, target in MODULES.items():
        text = generated(source)
        if "--check" not in sys.argv:
            target.write_text(text, encoding="utf-8")
        elif not target.is_file() or target.read_text(encoding="utf-8") != text:
            stale.append(str(target.relative_to(ROOT)))
    if stale:
        print(f"not what their sources give: {', '.join(stale)}; run `make sync`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
