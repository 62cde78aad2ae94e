"""`sharecoord groups`: output, rules of its options, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from sharecoord_sdk.admin import (
    AdminError,
    CoordinatorUnavailableError,
    GroupDescription,
    GroupListing,
    GroupNotEmptyError,
    GroupNotFoundError,
    GroupState,
    MemberDescription,
    PartitionOffsets,
    Pause,
    PauseAnswer,
    PauseResult,
    ResetResult,
    ResetTo,
    UnknownTopicOrPartitionError,
)

from tests.unit.cli.support import FakeAdmin, lines, run, words

ORDERS = PartitionOffsets(
    "orders",
    0,
    start_offset=10,
    end_offset=40,
    log_end_offset=100,
    lag=85,
    acquired_records=20,
    available_records=3,
    delayed_records=2,
    archived_records=1,
    leader_epoch=4,
)
FRESH = PartitionOffsets("orders", 1, log_end_offset=7)
FULL = PartitionOffsets("orders", 2, start_offset=5, log_end_offset=9, lag=4, window_full_at=5)
STOPPED = PartitionOffsets("orders", 3, start_offset=5, stopped_reason="LOG_REGRESSED")
MEMBER = MemberDescription(
    "m-1", 3, "worker", "127.0.0.1:5000", {"orders": (0, 1), "bills": (0,)}, 20, 120, 100, 0.98,
    software="librdkafka 2.16.0",
)  # fmt: skip
WORKERS = GroupDescription(
    "workers", GroupState.STABLE, 7, "c1", 1, (MEMBER,), (ORDERS, FRESH), 0.999
)
IDLE = GroupDescription("idle", GroupState.EMPTY, 1, "c1")
GONE = GroupDescription(
    "gone", error=GroupNotFoundError("share group 'gone' does not exist", reason="X")
)
LISTED = [GroupListing("idle", GroupState.EMPTY), GroupListing("workers", GroupState.STABLE)]
RESET = ("--reset-offsets", "--group", "g", "--topic", "orders")


# -- list -----------------------------------------------------------------------------------------


def test_list_prints_names() -> None:
    result = run("groups", "--list", admin=FakeAdmin(list_groups=LISTED))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "idle\nworkers\n", "")


def test_list_with_states() -> None:
    admin = FakeAdmin(list_groups=LISTED)
    result = run("groups", "--list", "--state", admin=admin)
    assert result.stdout.splitlines() == lines(
        """
        GROUP    STATE
        idle     Empty
        workers  Stable
        """
    )
    assert admin.calls == [("list_groups", ([],), {})]


def test_one_long_name_does_not_widen_the_table() -> None:
    listed = [*LISTED, GroupListing("n" * 249, GroupState.EMPTY)]
    result = run("groups", "--list", "--state", admin=FakeAdmin(list_groups=listed))
    assert result.stdout.splitlines() == [
        "GROUP    STATE",
        "idle     Empty",
        "workers  Stable",
        "n" * 249 + "  Empty",
    ]


def test_list_in_states() -> None:
    admin = FakeAdmin(list_groups=[])
    result = run("groups", "--list", "--state", "empty, Dead", admin=admin)
    assert admin.calls == [("list_groups", ([GroupState.EMPTY, GroupState.DEAD],), {})]
    assert (result.stdout, result.stderr) == ("", "no group is in state empty, Dead\n")


def test_list_before_there_is_a_group() -> None:
    result = run("groups", "--list", admin=FakeAdmin(list_groups=[]))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "there are no share groups yet; the first member that joins makes one" in result.stderr


def test_list_as_json_and_yaml() -> None:
    as_json = run("groups", "--list", "-o", "json", admin=FakeAdmin(list_groups=LISTED))
    assert json.loads(as_json.stdout) == [{"group": "idle"}, {"group": "workers"}]
    as_yaml = run("groups", "--list", "--state", "-o", "yaml", admin=FakeAdmin(list_groups=LISTED))
    assert yaml.safe_load(as_yaml.stdout) == [
        {"group": "idle", "state": "Empty"},
        {"group": "workers", "state": "Stable"},
    ]
    empty = run("groups", "--list", "-o", "json", admin=FakeAdmin(list_groups=[]))
    assert json.loads(empty.stdout) == []


# -- describe -------------------------------------------------------------------------------------


def test_describe_offsets() -> None:
    admin = FakeAdmin(describe_groups=[WORKERS])
    result = run("groups", "--describe", "--group", "workers", admin=admin)
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        words(
            "GROUP TOPIC PARTITION START-OFFSET LAG END-OFFSET LOG-END-OFFSET ACQUIRED AVAILABLE "
            "DELAYED ARCHIVED STATUS"
        ),
        ["workers", "orders", "0", "10", "85", "40", "100", "20", "3", "2", "1", "ok"],
        ["workers", "orders", "1", "-", "-", "-", "7", "0", "0", "0", "0", "not", "started"],
    ]
    assert admin.calls == [
        ("describe_groups", (("workers",),), {"members": False, "offsets": True})
    ]


def test_describe_offsets_verbose_has_kafkas_columns_in_kafkas_order() -> None:
    admin = FakeAdmin(describe_groups=[WORKERS])
    result = run("groups", "--describe", "--all-groups", "--offsets", "--verbose", admin=admin)
    header, first = (line.split() for line in result.stdout.splitlines()[:2])
    assert header[:6] == ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG"]
    assert first[:6] == ["workers", "orders", "0", "4", "10", "85"]


def test_describe_says_why_a_partition_is_not_served() -> None:
    unkept = PartitionOffsets("orders", 4, start_offset=5, log_end_offset=9, payloads_not_kept=3)
    unsent = PartitionOffsets(
        "orders",
        5,
        start_offset=5,
        log_end_offset=9,
        dead_letters_waiting=200,
        dead_letters_problem="UNKNOWN_TOPIC_OR_PART",
        pause=HELD,
    )
    sent = PartitionOffsets("orders", 6, start_offset=5, log_end_offset=9, dead_letters_waiting=2)
    short = PartitionOffsets(
        "orders",
        7,
        start_offset=5,
        log_end_offset=9,
        memory_short="memory.limit: nothing new is read",
    )
    offsets = (FULL, STOPPED, unkept, unsent, sent, short)
    described = GroupDescription("g", GroupState.STABLE, member_count=1, offsets=offsets)
    result = run(
        "groups", "--describe", "--group", "g", admin=FakeAdmin(describe_groups=[described])
    )
    assert result.stdout.splitlines()[1].endswith("window full at 5")
    assert result.stdout.splitlines()[2].endswith("stopped: LOG_REGRESSED")
    assert result.stdout.splitlines()[3].endswith("  3 payloads not kept")
    assert result.stdout.splitlines()[4].endswith(
        "  paused by operator: the disk is full (since 2026-01-31T12:00:00+00:00); "
        "200 dead letters not in their topic yet: UNKNOWN_TOPIC_OR_PART"
    )
    assert result.stdout.splitlines()[5].endswith("  2 dead letters not in their topic yet")
    assert result.stdout.splitlines()[6].endswith("  memory.limit: nothing new is read")


def test_describe_says_which_topics_kafka_refuses() -> None:
    why = "Kafka refuses topic 'orders' to the coordinator; allow READ"
    described = GroupDescription(
        "g",
        GroupState.STABLE,
        member_count=1,
        offsets=(ORDERS,),
        refused_topics={"orders": why},
    )
    result = run(
        "groups", "--describe", "--group", "g", admin=FakeAdmin(describe_groups=[described])
    )
    assert result.stdout.splitlines()[1].endswith("refused by Kafka")
    assert why in result.stderr


def test_describe_members() -> None:
    admin = FakeAdmin(describe_groups=[WORKERS])
    result = run("groups", "--describe", "--group", "workers", "--members", admin=admin)
    assert [line.split() for line in result.stdout.splitlines()] == [
        words(
            "GROUP CONSUMER-ID HOST CLIENT-ID #PARTITIONS ASSIGNMENT SOFTWARE ACQUIRED DELIVERED "
            "ACKNOWLEDGED FAIR-SHARE PAUSED"
        ),
        words(
            "workers m-1 127.0.0.1:5000 worker 3 orders:0,1;bills:0 librdkafka 2.16.0 20 120 100 "
            "0.980 -"
        ),
    ]
    assert admin.calls[0][2] == {"members": True, "offsets": False}
    verbose = run("groups", "--describe", "--group", "g", "--members", "--verbose", admin=admin)
    assert verbose.stdout.split()[4:9] == (
        ["#PARTITIONS", "MEMBER-EPOCH", "COORDINATOR", "PRINCIPAL", "ASSIGNMENT"]
    )


def test_verbose_tells_who_members_are() -> None:
    member = MemberDescription("m", 7, "worker", "h", principal="User:\x1b[31malice")
    described = GroupDescription("g", GroupState.STABLE, member_count=1, members=(member,))
    admin = FakeAdmin(describe_groups=[described])
    asked = ("groups", "--describe", "--group", "g", "--members")
    table = run(*asked, "--verbose", admin=admin)
    assert table.stdout.splitlines()[1].split()[7] == "User:\\x1b[31malice"
    (shown,) = json.loads(run(*asked, "--verbose", "-o", "json", admin=admin).stdout)
    assert shown["principal"] == "User:\x1b[31malice"
    assert "PRINCIPAL" not in run(*asked, admin=admin).stdout


def test_a_member_of_another_coordinator_has_no_figures_of_its_stream() -> None:
    member = MemberDescription("m", 7, "worker", "h", acquired_records=20, coordinator_id="b")
    described = GroupDescription("g", GroupState.STABLE, member_count=1, members=(member,))
    admin = FakeAdmin(describe_groups=[described])
    result = run("groups", "--describe", "--group", "g", "--members", "--verbose", admin=admin)
    assert result.stdout.splitlines()[1].split() == words("g m h worker 0 7 b - - - 20 - - - -")


def test_describe_state() -> None:
    admin = FakeAdmin(describe_groups=[WORKERS, IDLE])
    result = run("groups", "--describe", "--all-groups", "--state", admin=admin)
    assert result.stdout.splitlines() == lines(
        """
        GROUP    COORDINATOR (ID)  STATE   #MEMBERS  FAIRNESS  PAUSED
        workers  c1                Stable  1         0.999     -
        idle     c1                Empty   0         -         -
        """
    )
    assert result.stderr == "share group 'idle' has no active members\n"
    verbose = run("groups", "--describe", "--all-groups", "--verbose", "--state", admin=admin)
    assert verbose.stdout.splitlines()[0].split() == (
        words("GROUP COORDINATOR (ID) STATE GROUP-EPOCH ASSIGNMENT-EPOCH #MEMBERS FAIRNESS PAUSED")
    )


def test_describe_a_group_without_offsets_says_so() -> None:
    result = run("groups", "--describe", "--group", "idle", admin=FakeAdmin(describe_groups=[IDLE]))
    assert (result.exit_code, result.stdout) == (0, "")
    no_offsets, no_members = result.stderr.splitlines()
    assert no_offsets.startswith("share group 'idle' has no offset information: it gets some when")
    assert no_members == "share group 'idle' has no active members"


def test_describe_what_does_not_exist_fails_and_shows_the_rest() -> None:
    admin = FakeAdmin(describe_groups=[WORKERS, GONE])
    result = run("groups", "--describe", "--group", "workers", "--group", "gone", admin=admin)
    assert result.exit_code == 1
    assert "workers" in result.stdout
    assert result.stderr == "sharecoord: error: share group 'gone' does not exist\n"


def test_describe_before_there_is_a_group() -> None:
    result = run("groups", "--describe", "--all-groups", admin=FakeAdmin(describe_groups=[]))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("there are no share groups yet")


def test_names_cannot_steer_the_terminal() -> None:
    evil = GroupListing("a\x1b[31mb", GroupState.EMPTY)
    result = run("groups", "--list", admin=FakeAdmin(list_groups=[evil]))
    assert result.stdout == "a\\x1b[31mb\n"
    result = run("groups", "--list", "--state", admin=FakeAdmin(list_groups=[evil]))
    assert "\x1b" not in result.stdout


# -- pause ----------------------------------------------------------------------------------------

HELD = Pause("orders", 0, "", 1_769_860_800_000, "operator", "the disk is full")


def test_pause_says_what_is_paused() -> None:
    results = (PauseResult(HELD, changed=True), PauseResult(Pause("bills"), False, "was so"))
    admin = FakeAdmin(pause_group=PauseAnswer(results, (HELD,)))
    what = ("--topic", "orders:0", "--topic", "bills", "--member", "m-1", "--reason", "the disk")
    result = run("groups", "--pause", "--group", "g", *what, admin=admin)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == lines(
        """
        GROUP  WHAT       STATUS     NOTE
        g      orders[0]  paused     -
        g      bills      unchanged  was so
        """
    )
    assert result.stderr == (
        "paused: orders[0] by operator: the disk is full (since 2026-01-31T12:00:00+00:00)\n"
    )
    topics = {"orders": [0], "bills": []}
    assert admin.calls == [("pause_group", ("g", topics, ("m-1",)), {"reason": "the disk"})]


def test_resume() -> None:
    member = PauseResult(Pause(member_id="m-1", paused_by="operator"), changed=True)
    admin = FakeAdmin(resume_group=PauseAnswer((member,)))
    result = run("groups", "--resume", "--group", "g", "--member", "m-1", admin=admin)
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["GROUP", "WHAT", "STATUS", "NOTE"],
        ["g", "member", "m-1", "resumed", "-"],
    ]
    assert (result.stderr, admin.calls) == ("", [("resume_group", ("g", {}, ("m-1",)), {})])


def test_describe_says_what_is_paused_and_why() -> None:
    whole = Pause("", None, "", 1_769_860_800_000, "flood breaker", "too many")
    group = GroupDescription(
        "g",
        GroupState.STABLE,
        member_count=1,
        members=(replace(MEMBER, pause=whole),),
        offsets=(replace(ORDERS, pause=whole),),
        pauses=(whole, replace(HELD, reason="")),
    )
    said = "flood breaker: too many (since 2026-01-31T12:00:00+00:00)"
    for flags, expected in (
        ((), f"paused by {said}"),
        (("--members",), said),
        (("--state",), f"the group by {said}; orders[0] by operator (since 2026-01-31T12:00:00"),
    ):
        admin = FakeAdmin(describe_groups=[group])
        result = run("groups", "--describe", "--group", "g", *flags, admin=admin)
        assert expected in result.stdout.splitlines()[1]


@pytest.mark.parametrize("flags", [(), ("--members",), ("--state",)])
def test_describe_says_which_setting_is_not_in_force(flags: tuple[str, ...]) -> None:
    group = GroupDescription(
        "g",
        GroupState.STABLE,
        member_count=1,
        members=(MEMBER,),
        offsets=(ORDERS,),
        settings_problems=("a is not valid. Do this.",),
    )
    admin = FakeAdmin(describe_groups=[group])
    result = run("groups", "--describe", "--group", "g", *flags, admin=admin)
    said = "share group 'g': a setting is not in force: a is not valid. Do this.\n"
    assert result.stderr == said


# -- reset ----------------------------------------------------------------------------------------


def test_a_dry_run_says_that_it_is_one() -> None:
    results = [
        ResetResult("o", 0, 60, 10, requested_offset=99),
        ResetResult("o", 1, 3, None, requested_offset=1),
        ResetResult("o", 2, 50, 40),
    ]
    admin = FakeAdmin(reset_offsets=results)
    result = run("groups", *RESET, "--to-offset", "99", "--dry-run", admin=admin)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == lines(
        """
        GROUP  TOPIC  PARTITION  NEW-OFFSET  OLD-OFFSET  NOTE
        g      o      0          60          10          99 is outside of the log, which ends at 60
        g      o      1          3           -           1 is outside of the log, which starts at 3
        g      o      2          50          40          -
        """
    )
    assert result.stderr.startswith("dry run: nothing was changed")
    (call,) = admin.calls
    assert call[1] == ("g", ResetTo.offset(99), {"orders": []})
    assert call[2] == {"dry_run": True, "force": False}


@pytest.mark.parametrize(
    ("options", "to"),
    [
        (["--to-earliest"], ResetTo.earliest()),
        (["--to-latest"], ResetTo.latest()),
        (["--to-current"], ResetTo.current()),
        (["--to-datetime", "2026-01-31T12:00:00.250"], ResetTo.timestamp(1_769_860_800_250)),
        (["--to-datetime", "2026-01-31T13:00:00.250+01:00"], ResetTo.timestamp(1_769_860_800_250)),
        (["--to-datetime", "2026-01-31T12:00:00.250Z"], ResetTo.timestamp(1_769_860_800_250)),
        (["--by-duration", "PT1H30M"], ResetTo.duration(5_400_000)),
        (["--by-duration", "P1DT0.5S"], ResetTo.duration(86_400_500)),
    ],
)
def test_each_scenario(options: list[str], to: ResetTo) -> None:
    admin = FakeAdmin(reset_offsets=[ResetResult("orders", 0, 0)])
    arguments = ("--topic", "orders:2,0,2", "--topic", "bills", "--execute", "--force")
    result = run("groups", "--reset-offsets", "--group", "g", *arguments, *options, admin=admin)
    assert result.exit_code == 0
    (call,) = admin.calls
    assert call[1] == ("g", to, {"orders": [0, 2], "bills": []})
    assert call[2] == {"dry_run": False, "force": True}


def test_a_partition_that_failed_makes_the_exit_code_1() -> None:
    error = UnknownTopicOrPartitionError("the cluster has no topic 'nowhere'", reason="X")
    results = [ResetResult("orders", 0, 0), ResetResult("nowhere", -1, None, error=error)]
    admin = FakeAdmin(reset_offsets=results)
    result = run("groups", *RESET, "--to-earliest", "--execute", admin=admin)
    assert result.exit_code == 1
    last = result.stdout.splitlines()[-1]
    assert last.split()[:5] == ["g", "nowhere", "-", "-", "-"]
    assert last.endswith("error: the cluster has no topic 'nowhere'")


def test_a_group_with_members_is_one_line_and_exit_code_1() -> None:
    admin = FakeAdmin(reset_offsets=GroupNotEmptyError("group 'g' has\n2 members", reason="X"))
    result = run("groups", *RESET, "--to-latest", "--execute", admin=admin)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "sharecoord: error: group 'g' has 2 members\n"


def test_offsets_come_from_a_file_of_kafkas_tools(tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    admin = FakeAdmin(reset_offsets=[ResetResult("orders", 0, 5)])
    arguments = ("--reset-offsets", "--group", "g", "--from-file", str(file), "--execute")
    file.write_text('"orders",0,5\norders,1,6\n\n')
    assert run("groups", *arguments, admin=admin).exit_code == 0
    file.write_text("g,orders,0,5\nother,orders,0,99\ng,orders,1,6\n")
    assert run("groups", *arguments, admin=admin).exit_code == 0
    wanted = ResetTo.offsets({("orders", 0): 5, ("orders", 1): 6})
    assert [call[1] for call in admin.calls] == [("g", wanted, {})] * 2
    file.write_text("orders,0,5\norders,zero,6\n")
    result = run("groups", *arguments, admin=admin)
    assert result.exit_code == 2
    assert "offsets.csv:2: 'orders,zero,6' is neither" in result.stderr.replace("\n", "")
    file.write_text("other,orders,0,5\n")
    result = run("groups", *arguments, admin=admin)
    assert (result.exit_code, "no offset of group 'g'" in result.stderr) == (2, True)


# -- export ---------------------------------------------------------------------------------------


def test_export_of_one_group_is_what_kafkas_tools_read() -> None:
    admin = FakeAdmin(describe_groups=[WORKERS])
    result = run("groups", "--export", "--group", "workers", admin=admin)
    assert (result.exit_code, result.stdout) == (0, "orders,0,10\n")
    assert "kafka-share-groups.sh --bootstrap-server KAFKA --group workers" in result.stderr
    assert "kafka-consumer-groups.sh --bootstrap-server KAFKA --group workers" in result.stderr
    assert "5 records beyond the start offsets are finished here already" in result.stderr
    assert "members are still connected (workers)" in result.stderr


def test_export_of_several_groups_names_them() -> None:
    other = GroupDescription("a,b", GroupState.EMPTY, offsets=(FULL,))
    admin = FakeAdmin(describe_groups=[other, WORKERS])
    result = run("groups", "--export", "--all-groups", admin=admin)
    assert result.stdout == '"a,b",orders,2,5\nworkers,orders,0,10\n'
    as_json = run("groups", "--export", "--all-groups", "-o", "json", admin=admin)
    assert json.loads(as_json.stdout)[1] == {
        "group": "workers",
        "topic": "orders",
        "partition": 0,
        "offset": 10,
    }


def test_a_planned_reset_can_be_exported() -> None:
    error = UnknownTopicOrPartitionError("no topic", reason="X")
    results = [ResetResult("orders", 0, 5), ResetResult("nowhere", -1, None, error=error)]
    admin = FakeAdmin(reset_offsets=results)
    arguments = (*RESET, "--to-current", "--dry-run", "--export")
    result = run("groups", *arguments, admin=admin)
    assert (result.exit_code, result.stdout) == (1, "orders,0,5\n")
    assert "sharecoord: error: no topic" in result.stderr


# -- delete ---------------------------------------------------------------------------------------


def test_delete_says_what_kafka_says() -> None:
    admin = FakeAdmin(delete_groups={"a": None, "b": None})
    result = run("groups", "--delete", "--group", "a", "--group", "b", admin=admin)
    assert result.exit_code == 0
    assert result.stdout == "Deletion of requested share groups ('a', 'b') was successful.\n"


def test_delete_tells_which_groups_stay() -> None:
    busy = GroupNotEmptyError("group 'b' has 1 member; stop them first", reason="X")
    admin = FakeAdmin(list_groups=LISTED, delete_groups={"idle": None, "b": busy})
    result = run("groups", "--delete", "--all-groups", admin=admin)
    assert admin.calls[-1] == ("delete_groups", (["idle", "workers"],), {})
    assert result.exit_code == 1
    assert result.stdout == "These share groups were deleted successfully: 'idle'\n"
    assert "group 'b' was not deleted: group 'b' has 1 member" in result.stderr


def test_delete_all_of_none() -> None:
    result = run("groups", "--delete", "--all-groups", admin=FakeAdmin(list_groups=[]))
    assert (result.exit_code, result.stdout) == (0, "")


def test_delete_offsets() -> None:
    error = UnknownTopicOrPartitionError("no offsets for 'b'", reason="X")
    admin = FakeAdmin(delete_offsets={"orders": None, "b": error})
    arguments = ("--delete-offsets", "--group", "g", "--topic", "orders", "--topic", "b")
    result = run("groups", *arguments, admin=admin)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == lines(
        """
        TOPIC   STATUS
        b       Error: no offsets for 'b'
        orders  Successful
        """
    )


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give exactly one action"),
        ("--list --describe", "give exactly one action"),
        ("--list --group g", "--list takes no --group"),
        ("--list --state Busy", "'Busy' is not one of Empty, Stable, Dead"),
        ("--list --verbose", "--list does not take --verbose"),
        ("--describe", "name the group with --group, or give --all-groups"),
        ("--describe --group g --all-groups", "exclude each other"),
        ("--describe --group g --members --state", "takes one of --members, --offsets, --state"),
        ("--describe --group g --state Empty", "takes --state without a value"),
        ("--describe --group g --topic t", "--describe does not take --topic"),
        ("--describe --group g --execute", "--describe does not take --execute"),
        ("--delete", "name the group"),
        ("--delete --group g --topic t", "--delete takes no --topic"),
        ("--delete-offsets --group g", "takes one --group and one --topic"),
        ("--delete-offsets --group g --topic t:0", "leave the partitions out"),
        ("--reset-offsets --group g --topic t --to-latest", "one of --dry-run and --execute"),
        ("--reset-offsets --group g --topic t --to-latest --dry-run --execute", "one of --dry-run"),
        ("--reset-offsets --topic t --to-latest --dry-run", "takes one --group"),
        ("--reset-offsets --group g --topic t --dry-run", "given: none"),
        ("--reset-offsets --group g --topic t --dry-run --to-latest --to-earliest", "and --to-l"),
        ("--reset-offsets --group g --to-latest --dry-run", "--topic TOPIC[:0,1] or --all-topics"),
        ("--reset-offsets --group g --topic t:x --to-latest --dry-run", "TOPIC or TOPIC:0,1,2"),
        ("--reset-offsets --group g --topic t --to-datetime noon --dry-run", "YYYY-MM-DDThh:mm"),
        ("--reset-offsets --group g --topic t --to-datetime 2026-01-31 --dry-run", "time of day"),
        (
            "--reset-offsets --group g --topic t --by-duration 1h --dry-run",
            "must be an ISO-8601",
        ),
        ("--reset-offsets --group g --topic t --by-duration=-PT1H --dry-run", "that is not neg"),
        ("--reset-offsets --group g --topic t --all-topics --to-latest --dry-run", "exclude each"),
        ("--export", "name the group"),
        ("--pause --all-groups", "--pause and --resume take one --group"),
        ("--pause --group g --topic t:x", "TOPIC or TOPIC:0,1,2"),
        ("--pause --resume --group g", "exactly one action"),
        ("--resume --group g --reason r", "--resume does not take --reason"),
        ("--list --member m", "--list does not take --member"),
        ("--list --timeout 0", "'--timeout'"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: str, message: str) -> None:
    result = run("groups", *arguments.split(), admin=FakeAdmin(reset_offsets=[]))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_the_connection_comes_from_options_and_environment(tmp_path: Path) -> None:
    admin = FakeAdmin(list_groups=[])
    run("groups", "--list", admin=admin)
    assert admin.settings == {
        "bootstrap.servers": "localhost:7070",
        "default.api.timeout.ms": 30_000,
    }
    assert admin.closed
    run("groups", "--list", admin=admin, env={"SHARECOORD_BOOTSTRAP_SERVER": "here:1"})
    assert admin.settings["bootstrap.servers"] == "here:1"
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="ann" password="secret";\n'
    )
    options = ("--bootstrap-server", "there:2", "--command-config", str(file), "--timeout", "5")
    run("groups", "--list", *options, admin=admin)
    assert admin.settings["bootstrap.servers"] == "there:2"
    assert admin.settings["default.api.timeout.ms"] == 5
    assert (admin.settings["sasl.username"], admin.settings["sasl.password"]) == ("ann", "secret")


def test_a_coordinator_that_does_not_answer_is_exit_code_3() -> None:
    error = CoordinatorUnavailableError("no coordinator answers at x:1", reason="UNREACHABLE")
    result = run("groups", "--list", admin=FakeAdmin(list_groups=error))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "sharecoord: error: no coordinator answers at x:1\n"


def test_debug_shows_the_traceback() -> None:
    error = AdminError("broken", reason="INTERNAL")
    for arguments in (("--debug", "groups", "--list"), ("groups", "--list", "--debug")):
        result = run(*arguments, admin=FakeAdmin(list_groups=error))
        assert result.exception is error


def test_a_mistake_of_ours_is_one_line_too() -> None:
    result = run("groups", "--list", admin=FakeAdmin(list_groups=ZeroDivisionError("by zero")))
    assert result.exit_code == 1
    assert result.stderr == (
        "sharecoord: error: unexpected ZeroDivisionError: by zero (run again with --debug for the "
        "traceback)\n"
    )
