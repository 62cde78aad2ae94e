"""Which files of the repository are held to the rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Folders of tools and of generated code; everything else is written by hand and checked.
SKIPPED_FOLDERS = {
    ".git",
    ".venv",
    ".cache",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".import_linter_cache",
    "__pycache__",
    "_proto",
    "bench-results",
    "build",
    "dist",
    "node_modules",
}
TEXT_SUFFIXES = {
    ".cfg",
    ".css",
    ".html",
    ".ini",
    ".java",
    ".js",
    ".json",
    ".md",
    ".proto",
    ".py",
    ".pyi",
    ".sh",
    ".toml",
    ".tpl",
    ".txt",
    ".xml",
    ".yaml",
    ".yml",
}
TEXT_NAMES = {"Dockerfile", "Makefile", ".dockerignore", ".gitignore", ".importlinter", "run"}


def walk(root: Path = ROOT) -> Iterator[Path]:
    """Every file below `root` that is not a tool's or generated."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in SKIPPED_FOLDERS and not name.endswith(".egg-info")
        )
        yield from (Path(folder) / name for name in sorted(names))


def text_files(root: Path = ROOT) -> list[Path]:
    """The files that people read: code, documents, configuration."""
    return [p for p in walk(root) if p.suffix in TEXT_SUFFIXES or p.name in TEXT_NAMES]


def python_files(root: Path = ROOT) -> list[Path]:
    """The Python files."""
    return [p for p in walk(root) if p.suffix == ".py"]


def relative(path: Path, root: Path = ROOT) -> str:
    """The path as people write it."""
    return path.relative_to(root).as_posix()
