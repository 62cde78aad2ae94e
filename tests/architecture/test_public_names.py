"""The names that users import change on purpose only."""

from __future__ import annotations

from pathlib import Path

from tests.architecture.sources import relative
from tools import public_names


def test_public_names_are_the_kept_ones() -> None:
    kept = set(public_names.KEPT.read_text(encoding="utf-8").splitlines())
    now = set(public_names.listing().splitlines())
    changed = {"came": sorted(now - kept), "went": sorted(kept - now)}
    assert changed == {"came": [], "went": []}, "wanted? then run: make public-names"


def test_every_public_module_lists_its_names() -> None:
    silent = [
        relative(path)
        for path in public_names.public_modules(public_names.ROOT)
        if public_names.defines_something(path) and public_names.exported(path) is None
    ]
    assert silent == []


def test_the_listing_reads_all_of_public_modules_only(tmp_path: Path) -> None:
    package = tmp_path / "sdk" / "sharecoord_sdk"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__all__ = ["Worker", "Retry"]\n')
    (package / "admin.py").write_text('__all__: list[str] = ["AdminClient"]\n')
    (package / "_core.py").write_text('__all__ = ["Hidden"]\n')
    assert public_names.listing(tmp_path).splitlines() == [
        "sharecoord_sdk.Retry",
        "sharecoord_sdk.Worker",
        "sharecoord_sdk.admin.AdminClient",
    ]
