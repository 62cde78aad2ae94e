"""docs/wire.md names what the port answers and what it writes into the log."""

from __future__ import annotations

import re
from pathlib import Path

import sharecoord.api.kafka
from sharecoord.api.kafka.codec import VERSIONS, Head, name_of
from tests.pages import ROOT, code_of

FOLDER = Path(sharecoord.api.kafka.__file__).parent
FILE = ROOT / "docs" / "wire.md"
PAGE = FILE.read_text(encoding="utf-8")


def test_every_api_stands_there_with_its_versions() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\d+)(?: to (\d+))? \|", PAGE, re.MULTILINE)
    said = {int(key): (name, int(first), int(last or first)) for key, name, first, last in rows}
    served = {
        key: (name_of(Head(key, first, 0)), first, last) for key, (first, last) in VERSIONS.items()
    }
    assert said == served
    assert [int(row[0]) for row in rows] == sorted(VERSIONS)


def sources() -> str:
    """What the files of the port say, with texts over several lines joined."""
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(FOLDER.rglob("*.py")))
    return re.sub(r'"\s+f?"', "", text)


def test_every_line_of_the_log_stands_there() -> None:
    written = set(re.findall(r'"(Kafka port: [^"]+)"', sources()))
    assert len(written) > 4
    assert written == {span for span in code_of(FILE) if span.startswith("Kafka port: ")}


def test_reasons_that_stand_there_are_given() -> None:
    table = PAGE.partition("| `why` of an ended connection |")[2].partition("\n\n")[0]
    text = sources()
    reasons = [span for cell in re.findall(r"^\| (`.+`) \| ", table, re.MULTILINE)
               for span in re.findall(r"`([^`]+)`", cell)]  # fmt: skip
    assert len(reasons) > 8
    for reason in reasons:
        # Numbers and names are those of an example.
        parts = re.split(r"…|\bN\b|\bM\b|User:NAME|API 8 .* version 2|API 78 version 2: ", reason)
        for part in filter(None, map(str.strip, parts)):
            said = part.removeprefix("the client speaks ")
            assert said in text, f"{reason}: {said}"
