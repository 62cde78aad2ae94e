"""`sharecoord dead-letters`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from click.testing import Result
from sharecoord_sdk.admin import (
    DeadLetter,
    DeadLetterDetails,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLettersResult,
    DeadLetterState,
    UnknownDeadLetterError,
)

from tests.unit.cli.support import FakeAdmin, lines, run, words

LETTER = DeadLetter(
    id="billing:t:3:17:4",
    topic="orders",
    partition=3,
    offset=17,
    reason="REJECTED",
    delivery_count=2,
    failed_at_ms=1_767_225_600_500,
    message="not an amount",
    key=b"k1",
    state=DeadLetterState.IN_TOPIC,
    place=("dead", 0, 41),
    member_id="ann",
    timestamp_ms=1_767_225_600_000,
)
WAITING = replace(
    LETTER, id="billing:t:3:18:4", offset=18, place=None, state=DeadLetterState.WAITING, key=None
)
DETAILS = DeadLetterDetails(
    LETTER,
    b"twelve\neuros",
    (("trace", b"7"), ("trace", None), ("raw", b"\xff\x00")),
    ((1_767_225_600_000, "written to orders[3] at offset 17"), (0, "waits")),
)


def admin_with(*letters: DeadLetter, more: str = "") -> FakeAdmin:
    return FakeAdmin(list_dead_letters=DeadLetterPage(letters, more), show_dead_letter=DETAILS)


def wanted_by(*options: str) -> DeadLetterFilter:
    """The filter that options make."""
    admin = admin_with()
    result = run("dead-letters", "list", "--group", "billing", *options, admin=admin)
    assert result.exit_code == 0, result.output
    ((_, (group, wanted), _),) = admin.calls
    assert group == "billing"
    assert isinstance(wanted, DeadLetterFilter)
    return wanted


def test_letters_are_listed() -> None:
    result = run("dead-letters", "list", "--group", "billing", admin=admin_with(WAITING, LETTER))
    assert [line.split(maxsplit=9) for line in lines(result.stdout)] == [
        [*words("ID TOPIC PARTITION OFFSET REASON ATTEMPTS FAILED-AT KEY STATE"), "PLACE  ERROR"],
        [
            *words("billing:t:3:18:4 orders 3 18 REJECTED 2 2026-01-01T00:00:00.500+00:00 -"),
            "waiting",
            "-      not an amount",
        ],
        [
            *words("billing:t:3:17:4 orders 3 17 REJECTED 2 2026-01-01T00:00:00.500+00:00 k1"),
            "in",
            "topic  0:41   not an amount",
        ],
    ]


@pytest.mark.parametrize("read", [json.loads, yaml.safe_load])
def test_programs_get_everything(read: Any) -> None:
    long = replace(LETTER, message="x" * 200)
    form = "json" if read is json.loads else "yaml"
    result = run("dead-letters", "list", "--group", "b", "-o", form, admin=admin_with(long))
    (row,) = read(result.stdout)
    assert row == {
        "id": "billing:t:3:17:4",
        "topic": "orders",
        "partition": 3,
        "offset": 17,
        "reason": "REJECTED",
        "attempts": 2,
        "failed_at": "2026-01-01T00:00:00.500+00:00",
        "key": "k1",
        "state": "in topic",
        "place": "0:41",
        "error": "x" * 200,
        "run": "",
    }


def test_nothing_in_a_letter_steers_the_terminal() -> None:
    evil = replace(LETTER, message="\x1b[31mred\x9b2J\u202e" + "y" * 100, key=b"\x1b[2J")
    for form in ("table", "json", "yaml"):
        result = run("dead-letters", "list", "--group", "b", "-o", form, admin=admin_with(evil))
        assert all(c.isprintable() or c == "\n" for c in result.stdout), form
        assert "hex:1b5b324a" in result.stdout
    result = run("dead-letters", "list", "--group", "b", "-o", "json", admin=admin_with(evil))
    assert json.loads(result.stdout)[0]["error"] == evil.message
    result = run("dead-letters", "list", "--group", "b", admin=admin_with(evil))
    assert result.stdout.rstrip().endswith("y…")


def test_pages_are_put_together_until_there_are_enough() -> None:
    admin = admin_with(LETTER, WAITING, more="topic:0:5")
    result = run("dead-letters", "list", "--group", "g", "--max", "3", admin=admin)
    assert [kwargs["max_letters"] for _, _, kwargs in admin.calls] == [3, 1]
    assert [kwargs["after"] for _, _, kwargs in admin.calls] == ["", "topic:0:5"]
    assert "go on with --after topic:0:5" in result.stderr
    admin = admin_with(LETTER)
    result = run(
        "dead-letters", "list", "--group", "g", "--after", "topic:0:5",
        "--dead-letter-topic", "old", admin=admin,
    )  # fmt: skip
    ((_, _, kwargs),) = admin.calls
    assert (kwargs["after"], kwargs["dead_letter_topic"]) == ("topic:0:5", "old")
    assert result.stderr == ""


def test_options_make_the_filter() -> None:
    assert wanted_by() == DeadLetterFilter()
    wanted = wanted_by(
        "--reason", "rejected", "--reason", "DELIVERY_LIMIT", "--topic", "orders",
        "--partition", "3", "--offsets", "10-20", "--key", "hex:00ff", "--key-prefix", "größe",
        "--from", "2026-01-01T00:00:00", "--to", "1767225600500", "--header", "trace=7",
        "--header", "only", "--header", "empty=", "--header", "raw=hex:ff", "--id", "a",
        "--id", "b", "--text", "amount",
    )  # fmt: skip
    assert wanted == DeadLetterFilter(
        reasons=("REJECTED", "DELIVERY_LIMIT"),
        topic="orders",
        partitions=(3,),
        first_offset=10,
        last_offset=20,
        key=b"\x00\xff",
        key_prefix="größe".encode(),
        failed_from_ms=1_767_225_600_000,
        failed_to_ms=1_767_225_600_500,
        headers=(("trace", b"7"), ("only", None), ("empty", b""), ("raw", b"\xff")),
        ids=("a", "b"),
        text="amount",
    )
    one = wanted_by("--topic", "t", "--partition", "0", "--offsets", "7")
    assert (one.first_offset, one.last_offset) == (7, 7)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--reason", "BORED"], "'BORED' is not one of"),
        (["--offsets", "7-"], "--offsets 7-: it must be N or N-M"),
        (["--key", "hex:0g"], "--key hex:0g: behind hex: stand pairs"),
        (["--key-prefix", "hex:1"], "--key-prefix hex:1: behind hex:"),
        (["--header", "=x"], "--header =x: it must be NAME or NAME=VALUE"),
        (["--from", "yesterday"], "--from yesterday: "),
        (["--to", "2026"], "--to 2026: "),
        (["--partition", "-1"], "--partition"),
        (["--max", "0"], "--max"),
    ],
)
def test_bad_options_are_refused_by_name(options: list[str], text: str) -> None:
    admin = admin_with()
    result = run("dead-letters", "list", "--group", "g", *options, admin=admin)
    assert result.exit_code == 2
    assert text in result.stderr
    assert admin.calls == []


def test_one_letter_is_shown_whole() -> None:
    admin = admin_with()
    result = run("dead-letters", "show", "billing:t:3:17:4", "--group", "billing", admin=admin)
    assert [line.split("  ")[0] for line in lines(result.stdout)][-7:] == [
        "payload",
        "value",
        "header trace",
        "header trace",
        "header raw",
        "2026-01-01T00:00:00.000+00:00",
        "now",
    ]
    assert r"twelve\neuros" in result.stdout
    assert "hex:ff00" in result.stdout
    ((_, args, kwargs),) = admin.calls
    assert (args, kwargs["place"]) == (("billing", "billing:t:3:17:4"), None)


def test_one_letter_by_its_place_for_programs() -> None:
    admin = admin_with()
    result = run("dead-letters", "show", "0:41", "--group", "b", "-o", "json", admin=admin)
    (shown,) = json.loads(result.stdout)
    assert shown["value"] == "twelve\neuros"
    assert shown["headers"] == [
        {"name": "trace", "value": "7"},
        {"name": "trace", "value": None},
        {"name": "raw", "value": "hex:ff00"},
    ]
    assert [step["text"] for step in shown["life"]] == [text for _, text in DETAILS.steps]
    ((_, args, kwargs),) = admin.calls
    assert (args, kwargs["place"]) == (("b", ""), (0, 41))


def test_a_letter_that_is_not_there_is_one_line() -> None:
    admin = FakeAdmin(show_dead_letter=UnknownDeadLetterError("group 'b' has no dead letter x"))
    result = run("dead-letters", "show", "x", "--group", "b", admin=admin)
    assert (result.exit_code, result.stderr) == (
        1,
        "sharecoord: error: group 'b' has no dead letter x\n",
    )


# -- redrive and discard --------------------------------------------------------------------------

RESULT = DeadLettersResult(
    run_id="",
    letters=3,
    parts={("orders", 0): 1, ("orders", 3): 2},
    first=(LETTER,),
    redriven=1,
    discarded=2,
    copies=4,
    waiting=5,
    not_redrivable={"gone": 6, "kept": 7, "off": 8},
    more=True,
)


def run_letters(*arguments: str, result: DeadLettersResult = RESULT) -> tuple[Result, FakeAdmin]:
    admin = FakeAdmin(redrive_dead_letters=result, discard_dead_letters=result)
    return run("dead-letters", *arguments, admin=admin), admin


def test_without_execute_nothing_is_done_and_everything_said() -> None:
    result, admin = run_letters("redrive", "--group", "billing", "--reason", "REJECTED")
    assert result.exit_code == 0
    ((name, (group, wanted), kwargs),) = admin.calls
    assert (name, group, wanted) == (
        "redrive_dead_letters",
        "billing",
        DeadLetterFilter(reasons=("REJECTED",)),
    )
    assert kwargs == {
        "all_letters": False,
        "dry_run": True,
        "rate_per_s": 0,
        "again": False,
        "discarded": False,
        "max_letters": 0,
        "dead_letter_topic": "",
    }
    assert [words(line) for line in result.stdout.splitlines()[:3]] == [
        ["TOPIC", "PARTITION", "LETTERS"],
        ["orders", "0", "1"],
        ["orders", "3", "2"],
    ]
    assert LETTER.id in result.stdout
    assert result.stderr.splitlines() == [
        "Dry run: nothing was done. 3 letters would be redriven by --execute.",
        "Left out: 1 letter: redriven before (--again takes them).",
        "Left out: 2 letters: discarded before (--discarded redrives them).",
        "Left out: 4 letters: a second copy of a letter.",
        "Left out: 5 letters: not in their topic yet.",
        "Left out: 6 letters: the record was gone from the log, payload gone.",
        (
            "Left out: 7 letters: too large for the topic, and the store has the record no more, "
            "payload kept."
        ),
        (
            "Left out: 8 letters: the group copies no records "
            "(errors.deadletterqueue.copy.record.enable), payload off."
        ),
        "There are more: the same command goes on behind these.",
    ]


def test_execute_does_it() -> None:
    done = DeadLettersResult(run_id="r1", letters=1, parts={("orders", 3): 1})
    result, admin = run_letters(
        "redrive", "--group", "g", "--all", "--execute", "--rate", "50", "--again", "--discarded",
        "--max", "7", "--dead-letter-topic", "old", result=done,
    )  # fmt: skip
    ((_, (_, wanted), kwargs),) = admin.calls
    assert wanted == DeadLetterFilter()
    assert kwargs == {
        "all_letters": True,
        "dry_run": False,
        "rate_per_s": 50,
        "again": True,
        "discarded": True,
        "max_letters": 7,
        "dead_letter_topic": "old",
    }
    assert result.stderr == "1 letter redriven by run r1.\n"


def test_programs_get_one_object() -> None:
    result, _ = run_letters("discard", "--group", "g", "--id", "x", "-o", "json")
    (row,) = json.loads(result.stdout)
    assert row["parts"][1] == {"topic": "orders", "partition": 3, "letters": 2}
    assert row["first"][0]["id"] == LETTER.id
    assert (row["letters"], row["not_redrivable"]["gone"], row["more"]) == (3, 6, True)
    assert "would be discarded by --execute" in result.stderr


def test_discard_is_a_call_of_its_own() -> None:
    _, admin = run_letters("discard", "--group", "g", "--key", "k", "--execute")
    ((name, (_, wanted), kwargs),) = admin.calls
    assert (name, wanted.key, kwargs["dry_run"]) == ("discard_dead_letters", b"k", False)


@pytest.mark.parametrize("command", ["redrive", "discard"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "say which letters are meant (--reason, --topic, --key, --from, ...), or --all"),
        (["--execute"], "or --all"),
        (["--all", "--text", "x"], "--all and options that say which letters exclude each other"),
        (["--all", "--execute", "--dry-run"], "--dry-run and --execute exclude each other"),
        (["--all", "--max", "250001"], "--max"),
        (["--all", "--key-prefix", "hex:zz"], "--key-prefix hex:zz"),
    ],
)
def test_unclear_runs_are_refused(command: str, options: list[str], text: str) -> None:
    result, admin = run_letters(command, "--group", "g", *options)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())
    assert admin.calls == []


@pytest.mark.parametrize("rate", ["0", "-1", "1000001", "fast"])
def test_a_rate_that_can_not_be_is_refused(rate: str) -> None:
    result, admin = run_letters("redrive", "--group", "g", "--all", "--rate", rate)
    assert (result.exit_code, admin.calls) == (2, [])
    assert "--rate" in result.stderr


def test_a_redrive_is_withdrawn() -> None:
    admin = FakeAdmin(withdraw_redrive=2)
    result = run("dead-letters", "withdraw", "--group", "g", admin=admin)
    assert (result.exit_code, result.stdout) == (0, "2 letters withdrawn.\n")
    assert admin.calls == [("withdraw_redrive", ("g",), {"dead_letter_topic": ""})]
