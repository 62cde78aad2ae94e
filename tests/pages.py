"""The pages that users read, block by block."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SHELL: Final = frozenset({"sh", "bash", "shell"})
PROGRAMS: Final = frozenset(
    {"docker", "helm", "kubectl", "make", "pip", "python", "pytest", "sharecoord", "spark-submit"}
)
"""What the first word of a line of a shell is, besides Kafka's own scripts."""

_FENCE: Final = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>[^\n]*) -->\n *)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


def pages() -> list[Path]:
    """All of them; what was measured or decided once is no page."""
    own = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "sdk/README.md")]
    return [*own, ROOT / "helm/sharecoord/README.md", *sorted((ROOT / "docs").glob("*.md"))]


def name_of(page: Path) -> str:
    """As tests name it."""
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: Its page, below the root.
        line: Of its fence.
        language: "" = none is given.
        text: Without fences and indentation.
        reason: Why the tests do not run it, "" = they do.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str

    @property
    def is_shell(self) -> bool:
        """Whether a person types it."""
        return self.language in SHELL

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without comments; what follows a pipe is left out."""
        return [found for line in _lines(self.text) if (found := words_of(line))]

    def __str__(self) -> str:
        """For the names of tests."""
        return f"{self.page}:{self.line}"


def _lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def words_of(line: str) -> list[str]:
    """The words of one command up to a pipe, a redirection or a second command."""
    words = shlex.split(line, comments=True)
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "&&", ";", "&", "2>&1")]
    words = words[: min(ends, default=len(words))]
    while words and re.fullmatch(r"!|[A-Z_]+=\S*", words[0]):
        del words[0]
    return words


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent = match["indent"]
        inside = "\n".join(line.removeprefix(indent) for line in match["text"].splitlines())
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(name_of(page), line, match["language"], inside, match["reason"] or ""))
    return found


def all_blocks() -> list[Block]:
    """Of all pages."""
    return [block for page in pages() for block in blocks_of(page)]


def code_of(page: Path) -> Iterator[str]:
    """What stands between backticks in the prose of a page, each on one line."""
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose):
        yield " ".join(span.split())
