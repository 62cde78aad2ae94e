"""`sharecoord groups --import` and `--export --to-consumer-group`."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharecoord_sdk.admin import (
    AdminError,
    ExportedOffsets,
    ImportedOffsets,
    ResetResult,
    ResetTo,
    UnknownTopicOrPartitionError,
)

from tests.unit.cli.support import FakeAdmin, run, words

GONE: AdminError = UnknownTopicOrPartitionError("topic 'orders' has no partition 7")
IMPORTED = [
    ImportedOffsets(ResetResult("orders", 0, 40), 40, 60),
    ImportedOffsets(ResetResult("orders", 1, 5, 2), None, 0),
]
IMPORT = ("groups", "--import", "--group", "g", "--from-consumer-group", "old")
EXPORT = ("groups", "--export", "--group", "g", "--to-consumer-group", "new")


def test_an_import_shows_offsets_and_lag() -> None:
    admin = FakeAdmin(import_offsets=IMPORTED)
    done = run(*IMPORT, "--topic", "orders", "--dry-run", admin=admin)
    assert done.exit_code == 0
    head, first, second = done.stdout.splitlines()
    assert words(head) == [
        *("GROUP", "TOPIC", "PARTITION", "COMMITTED", "NEW-OFFSET", "OLD-OFFSET", "LAG", "NOTE")
    ]
    assert words(first)[:7] == ["g", "orders", "0", "40", "40", "-", "60"]
    assert words(second)[3:7] == ["-", "5", "2", "0"]
    assert "nothing committed: share.auto.offset.reset" in second
    assert "dry run: nothing was changed" in done.stderr
    how = {"dry_run": True, "force": False}
    assert admin.calls == [("import_offsets", ("g", "old", ("orders",)), how)]


def test_an_import_that_is_not_complete_fails() -> None:
    gone = ImportedOffsets(ResetResult("orders", 7, None, error=GONE), 1)
    admin = FakeAdmin(import_offsets=[*IMPORTED, gone])
    done = run(*IMPORT, "--execute", "--force", admin=admin)
    assert done.exit_code == 1
    assert "error: topic 'orders' has no partition 7" in done.stdout
    assert admin.calls[0][2] == {"dry_run": False, "force": True}


def test_an_export_says_what_comes_again() -> None:
    exported = [ExportedOffsets("orders", 0, 40, 3), ExportedOffsets("orders", 7, 1, error=GONE)]
    admin = FakeAdmin(export_offsets=exported)
    done = run(*EXPORT, "--execute", admin=admin)
    assert done.exit_code == 1
    assert words(done.stdout.splitlines()[1]) == ["new", "orders", "0", "40", "3", "Successful"]
    assert "3 records beyond the start offsets are finished here already" in done.stderr
    admin = FakeAdmin(export_offsets=exported[:1])
    done = run(*EXPORT, "--dry-run", admin=admin)
    assert done.exit_code == 0
    assert "dry run: nothing was changed" in done.stderr


CSV = "orders,0,40\norders,1,3\n"
DESCRIBED = """
GROUP          TOPIC          PARTITION  START-OFFSET  LAG
native         orders         0          40            60
native         orders         1          3             -
"""


@pytest.mark.parametrize(("text", "group"), [(CSV, "g"), (DESCRIBED, "native")])
def test_offsets_of_a_native_share_group_come_from_a_file(
    text: str, group: str, tmp_path: Path
) -> None:
    """What its tools print, as it is."""
    file = tmp_path / "offsets"
    file.write_text(text, encoding="utf-8")
    results = [ResetResult("orders", 0, 40), ResetResult("orders", 1, 3)]
    admin = FakeAdmin(reset_offsets=results)
    arguments = ("groups", "--import", "--group", group, "--from-file", str(file))
    done = run(*arguments, "--execute", admin=admin)
    assert done.exit_code == 0, done.stderr
    to = ResetTo.offsets({("orders", 0): 40, ("orders", 1): 3})
    assert admin.calls[0][1] == (group, to, {})


def test_a_share_partition_without_a_start_offset_is_named(tmp_path: Path) -> None:
    file = tmp_path / "offsets"
    file.write_text(DESCRIBED.replace("3    ", "-    "), encoding="utf-8")
    done = run(
        *("groups", "--import", "--group", "native", "--from-file", str(file), "--execute"),
        admin=FakeAdmin(reset_offsets=[]),
    )
    assert done.exit_code == 2
    assert "orders[1] has no start offset yet; take the line out" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--import", "--group", "g", "--execute"], "one of --from-consumer-group NAME and --from"),
        (["--import", "--from-consumer-group", "c", "--execute"], "--import takes one --group"),
        ([*IMPORT[1:]], "--import takes one of --dry-run and --execute"),
        ([*IMPORT[1:], "--execute", "--dry-run"], "one of --dry-run and --execute"),
        ([*IMPORT[1:], "--execute", "--topic", "t:0"], "--import takes whole topics"),
        ([*IMPORT[1:], "--execute", "--to-latest"], "--import does not take --to-latest"),
        ([*IMPORT[1:], "--execute", "--all-topics"], "--import does not take --all-topics"),
        ([*EXPORT[1:]], "takes one of --dry-run and --execute"),
        ([*EXPORT[1:], "--execute", "--topic", "t:0"], "takes whole topics"),
        (["--export", "--all-groups", "--to-consumer-group", "c"], "takes one --group"),
        (["--export", "--group", "g", "--execute"], "--export does not take --execute"),
        (["--export", "--group", "g", "--topic", "t"], "--export does not take --topic"),
        (["--list", "--to-consumer-group", "c"], "--list does not take --to-consumer-group"),
        (["--export", "--group", "g", "--from-consumer-group", "c"], "does not take --from-cons"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], text: str) -> None:
    done = run("groups", *arguments)
    assert done.exit_code == 2
    assert text in done.stderr
