"""Files that are read again: a good change is taken, a bad one leaves what was there before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sharecoord.errors import InvalidConfigError
from sharecoord.security import files as module
from sharecoord.security.files import FileWatch, WatchedFiles


def joined(contents: Mapping[str, bytes]) -> str:
    """The value of some files; refuses one with `bad` in it."""
    text = "".join(content.decode() for content in contents.values())
    if "bad" in text:
        raise InvalidConfigError("a.file: it is bad")
    return text


def put(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    path = tmp_path / "one"
    path.write_text("1")
    return path


def test_a_change_is_seen_once(one: Path) -> None:
    watched = WatchedFiles({"a.file": str(one)}, joined)
    assert watched.value == "1"
    assert not watched.look()
    one.write_text("22")
    assert watched.look()
    assert (watched.value, watched.problem) == ("22", "")
    assert not watched.look()


def test_the_same_content_again_is_no_change(one: Path) -> None:
    watched = WatchedFiles({"a.file": str(one)}, joined)
    os.utime(one, (1, 1))
    assert not watched.look()
    assert watched.problem == ""


def test_a_bad_change_keeps_what_was_there_and_a_good_one_mends_it(one: Path) -> None:
    watched = WatchedFiles({"a.file": str(one)}, joined)
    for change in ("bad", None):
        if change is None:
            one.unlink()
        else:
            one.write_text(change)
        assert not watched.look()
        assert watched.value == "1"
        assert "a.file" in watched.problem
    one.write_text("1")
    assert not watched.look(), "it is what was in force all the time"
    assert watched.problem == ""
    one.write_text("3")
    assert watched.look()
    assert watched.value == "3"


def test_files_that_belong_together_are_read_together(one: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("a")
    watched = WatchedFiles({"a.file": str(one), "b.file": str(other)}, joined)
    assert watched.settings == "a.file, b.file"
    other.write_text("bad")
    one.write_text("2")
    assert not watched.look()
    assert watched.value == "1a"
    other.write_text("b")
    assert watched.look()
    assert watched.value == "2b"


def test_a_link_that_leads_elsewhere_is_a_change(one: Path, tmp_path: Path) -> None:
    """As Kubernetes changes a mounted secret."""
    other, link = tmp_path / "other", tmp_path / "link"
    other.write_text("2")
    link.symlink_to(one)
    watched = WatchedFiles({"a.file": str(link)}, joined)
    (tmp_path / "new").symlink_to(other)
    (tmp_path / "new").rename(link)
    assert watched.look()
    assert watched.value == "2"


def test_a_file_that_is_not_there_at_the_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"a\.file: can not read"):
        WatchedFiles({"a.file": str(tmp_path / "none")}, joined)


def test_a_file_that_is_too_large_is_refused(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 4)
    one.write_text("12345")
    with pytest.raises(InvalidConfigError, match="is it the right file"):
        WatchedFiles({"a.file": str(one)}, joined)


async def test_a_watch_tells_of_changes_and_of_problems(one: Path) -> None:
    watch, heard = FileWatch(), list[str]()
    watched = WatchedFiles({"a.file": str(one)}, joined)
    watch.add(watched, lambda: heard.append(watched.value))
    await watch.look()
    assert (heard, list(watch.problems())) == ([], [("a.file", "")])
    put(one, "2")
    await watch.look()
    assert heard == ["2"]
    put(one, "bad")
    await watch.look()
    assert heard == ["2"]
    assert list(watch.problems()) == [("a.file", "a.file: it is bad")]


async def test_a_librarys_mistake_about_one_file_holds_up_no_other(
    one: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("x")

    def strict(contents: Mapping[str, bytes]) -> str:
        return contents["b.file"].decode("ascii")

    watch, heard = FileWatch(), list[str]()
    watch.add(WatchedFiles({"b.file": str(other)}, strict))
    watch.add(WatchedFiles({"a.file": str(one)}, joined), lambda: heard.append("a.file"))
    other.write_bytes(b"s3cret \xff")
    put(one, "2")
    await watch.look()
    assert heard == ["a.file"]
    (_, problem), (_, fine) = watch.problems()
    assert problem == "reading it ended with UnicodeDecodeError, which should not be"
    assert fine == ""
