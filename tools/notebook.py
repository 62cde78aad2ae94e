"""Runs the notebooks of docs/ from first cell to last; `make notebooks` keeps what they say.

Cells with the tag `finding` say the same each time: they are compared with what is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
CELL_TIMEOUT_S = 300
"""Of one cell, which may be a whole job of Spark on a busy machine."""


def executed(path: Path) -> Any:
    """The notebook with what its cells say now.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed; the message is its traceback.
    """
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=CELL_TIMEOUT_S, resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if "outputs" in cell:
            # What Spark and the kernel say of themselves.
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return notebook


def findings(notebook: Any) -> dict[str, str]:
    """What the cells with the tag print, by id of the cell."""
    return {
        cell.id: "".join(each.text for each in cell.outputs if each.output_type == "stream")
        for cell in notebook.cells
        if "finding" in cell.metadata.get("tags", [])
    }


def main() -> int:
    """Runs all of them and keeps their outputs."""
    for path in NOTEBOOKS:
        notebook = executed(path)
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
    return 0


if __name__ == "__main__":
    sys.exit(main())
