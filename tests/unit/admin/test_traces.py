"""The audit trail of operators' commands: what was asked, what changed, and no payload."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from sharecoord.api.grpc.admin_service import SERVICE
from sharecoord.core.letters.filter import LetterFilter
from sharecoord.core.states import ForceAction
from sharecoord.errors import UnknownTopicOrPartitionError
from sharecoord.ports import CommittedOffset
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.admin.migration import ExportCommand, ImportCommand
from sharecoord.runtime.admin.replay import OffsetRange, ReplayCommand
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetResult, ResetTo
from sharecoord.runtime.admin.traces import (
    COMMANDS,
    SHOWN_MAX,
    CommandKind,
    Trace,
    is_told,
    trace_of,
)
from sharecoord.runtime.letters.plan import LetterCommand
from sharecoord.runtime.letters.scan import LetterPlace
from sharecoord.security.audit import Outcome
from tests.unit.admin.letters import NAME, reject, with_letters
from tests.unit.admin.support import Bench, virtual
from tests.unit.runtime.test_offsets_export import FakeGroups

LOCK = "share.record.lock.duration.ms"


def digest(key: bytes) -> str:
    return f"sha256:{hashlib.sha256(key).hexdigest()[:16]}"


async def traced(bench: Bench, command: str, arguments: Mapping[str, Any]) -> Trace:
    """Runs a command as AdminService does; its trace must be JSON."""
    result = await getattr(bench.admin, command)(**arguments)
    trace = trace_of(command, arguments, result)
    json.dumps(trace)
    return trace


def commands() -> list[str]:
    """The calls of AdminService, by the names of their commands."""
    names = [method.name for method in SERVICE.methods]
    return [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names]


def test_each_call_has_its_kind() -> None:
    assert list(COMMANDS) == commands()
    changes = [name for name, each in COMMANDS.items() if each.kind is CommandKind.CHANGES]
    reads = ("list_", "describe_", "show_")
    assert changes == [name for name in commands() if not name.startswith(reads)]


@pytest.mark.parametrize("command", ["show_dead_letter", "list_dead_letters"])
def test_who_reads_records_leaves_a_trace(command: str) -> None:
    assert COMMANDS[command].kind is CommandKind.READS_PAYLOADS


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("reset_offsets", set(Outcome)),
        ("show_dead_letter", set(Outcome)),
        ("list_groups", {Outcome.REFUSED}),
    ],
)
def test_a_plain_read_is_told_of_when_it_is_refused(command: str, told: set[Outcome]) -> None:
    assert {outcome for outcome in Outcome if is_told(command, outcome)} == told


def test_nobody_says_in_a_request_who_he_is() -> None:
    """`by` is the caller's principal: no request may have a field of that name."""
    with_by = [
        name for name in commands() if "by" in inspect.signature(getattr(Admin, name)).parameters
    ]
    assert {"pause_group", "resume_group", "force_records", "block_keys"} <= set(with_by)
    for method in SERVICE.methods:
        waiting, seen = [method.input_type], set()
        while waiting:
            message = waiting.pop()
            assert "by" not in message.fields_by_name, message.full_name
            inner = {each.message_type for each in message.fields if each.message_type} - seen
            seen |= inner
            waiting += inner


@virtual
async def test_settings_before_and_after(bench: Bench) -> None:
    given = {"group_id": "g", "set_values": {LOCK: "20s"}, "deleted": []}
    trace = await traced(bench, "alter_group_configs", given)
    assert trace == Trace(
        ("group:g",), {"set_values": {LOCK: "20s"}}, {LOCK: "30000"}, {LOCK: "20000"}
    )
    given = {"group_id": "g", "set_values": {}, "deleted": [LOCK], "validate_only": True}
    trace = await traced(bench, "alter_group_configs", given)
    assert trace.asked == {"deleted": [LOCK], "validate_only": True}
    assert (trace.before, trace.after) == ({LOCK: "20000"}, {LOCK: "30000"})
    # Another release has stored it.
    bench.world.store.save_group_config("g", set_values={"share.new": "1"}, deleted=[])
    given = {"group_id": "g", "set_values": {}, "deleted": ["share.new"]}
    trace = await traced(bench, "alter_group_configs", given)
    assert (trace.before, trace.after) == ({"share.new": "1"}, {})


@virtual
async def test_start_offsets_before_and_after(bench: Bench) -> None:
    await bench.reset(ResetTo(ResetKind.OFFSET, 7), orders=(0,))
    command = ResetCommand("g", ResetTo(ResetKind.EARLIEST), {"orders": (0,), "no": ()}, force=True)
    trace = await traced(bench, "reset_offsets", {"command": command})
    assert trace == Trace(
        ("group:g", "topic:orders", "topic:no"),
        {
            "to": {"kind": "to_earliest", "value": 0},
            "topics": {"orders": [0], "no": []},
            "force": True,
        },
        {"orders[0]": 7},
        {"no[-1]": "UNKNOWN_TOPIC_OR_PARTITION", "orders[0]": 0},
    )


def test_the_trace_of_a_thousand_partitions_is_small() -> None:
    results = [ResetResult("orders", n, "id", n + 1, n) for n in range(1_000)]
    results[0] = ResetResult("orders", 0, error=UnknownTopicOrPartitionError("gone"))
    topics = {f"t{n}": tuple(range(100)) for n in range(1_000)}
    command = ResetCommand("g", ResetTo(ResetKind.LATEST), topics)
    trace = trace_of("reset_offsets", {"command": command}, results)
    assert len(trace.before) == len(trace.after) == SHOWN_MAX + 1
    assert (trace.before["..."], trace.after["..."]) == ("979 more", "980 more")
    assert (trace.before["orders[1]"], trace.after["orders[0]"]) == (
        1,
        "UNKNOWN_TOPIC_OR_PARTITION",
    )
    assert trace.resources[:2] == ("group:g", "topic:t0")
    assert trace.resources[SHOWN_MAX:] == ("... 981 more",)
    shown = trace.asked["topics"]
    assert isinstance(shown, dict)
    assert (len(shown), shown["..."]) == (SHOWN_MAX + 1, "980 more")
    assert shown["t0"] == [*range(SHOWN_MAX), "... 80 more"]


@virtual
async def test_pauses_and_resumptions(bench: Bench) -> None:
    await bench.member()
    given = {"group_id": "g", "topics": (("orders", (1,)),), "member_ids": ("m1",)}
    trace = await traced(bench, "pause_group", {**given, "reason": "why", "by": "User:alice"})
    assert trace == Trace(
        ("group:g", "topic:orders"),
        {"topics": [["orders", [1]]], "member_ids": ["m1"], "reason": "why"},
        {"orders[1]": "running", "member 'm1'": "running"},
        {"orders[1]": "paused", "member 'm1'": "paused"},
    )
    trace = await traced(bench, "pause_group", {**given, "member_ids": ()})
    assert (trace.before, trace.after) == ({"orders[1]": "paused"}, {"orders[1]": "paused"})
    trace = await traced(bench, "resume_group", {"group_id": "g", "topics": (("orders", (0, 1)),)})
    assert trace.before == {"orders[0]": "running", "orders[1]": "paused"}
    assert trace.after == {"orders[0]": "running", "orders[1]": "running"}
    trace = await traced(bench, "pause_group", {"group_id": "g"})
    assert (trace.asked, trace.after) == ({}, {"the group": "paused"})


@virtual
async def test_forced_records_are_counted_by_their_state(bench: Bench) -> None:
    member = await bench.member()
    await member.take(100)
    given = {
        "group_id": "g",
        "partition": PartitionName("orders", 0, "ab" * 16),
        "first_offset": 0,
        "last_offset": 9,
        "action": ForceAction.SKIP,
    }
    trace = await traced(bench, "force_records", given)
    assert trace.resources == ("group:g", "topic:orders")
    assert trace.asked == {
        "partition": {"topic": "orders", "partition": 0, "topic_id": "ab" * 16},
        "first_offset": 0,
        "last_offset": 9,
        "action": "skip",
    }
    assert (trace.before, trace.after) == ({"acquired": 10}, {"archived": 10})


@virtual
async def test_deletions_name_what_was_not_deleted(bench: Bench) -> None:
    await bench.member()
    await bench.reset(ResetTo(ResetKind.EARLIEST), force=True, orders=(0,))
    trace = await traced(bench, "delete_groups", {"group_ids": ["g", "other"]})
    assert trace == Trace(
        ("group:g", "group:other"), {}, {}, {"g": "GROUP_NOT_EMPTY", "other": "GROUP_ID_NOT_FOUND"}
    )
    bench.log.create("bills", 1)
    trace = await traced(bench, "delete_offsets", {"group_id": "g", "topics": ["bills"]})
    assert trace.resources == ("group:g", "topic:bills")
    assert trace.after == {"bills": "UNKNOWN_TOPIC_OR_PARTITION"}


@virtual
async def test_blocked_keys_are_told_by_their_digest(bench: Bench) -> None:
    await bench.admin.alter_group_configs("g", {"share.ordering": "key"}, [])
    given = {"group_id": "g", "keys": (b"card 4711", b""), "reason": "why"}
    trace = await traced(bench, "block_keys", given)
    asked = {"keys": [digest(b"card 4711"), digest(b"")], "reason": "why"}
    assert trace == Trace(("group:g",), asked, {}, {})
    given = {"group_id": "g", "keys": (b"card 4711", b"never", b"never")}
    trace = await traced(bench, "unblock_keys", given)
    assert (trace.before, trace.after) == ({"blocked": 1}, {"blocked": 0})


@virtual
async def test_offsets_from_and_for_consumer_groups(bench: Bench) -> None:
    kafka = FakeGroups()
    kafka.groups["old"] = {("orders", 0): CommittedOffset(40, "")}
    bench.coordinator.context.offsets_export = kafka
    await bench.reset(ResetTo(ResetKind.OFFSET, 7), orders=(0,))
    command = ImportCommand("g", "old", topics=("orders",), dry_run=True)
    trace = await traced(bench, "import_offsets", {"command": command})
    assert trace.resources == ("group:g", "topic:orders", "consumer-group:old")
    asked = {"consumer_group": "old", "topics": ["orders"], "dry_run": True}
    assert trace.asked == asked
    assert (trace.before["orders[0]"], trace.after["orders[0]"]) == (7, 40)
    trace = await traced(bench, "export_offsets", {"command": ExportCommand("g", "new")})
    assert trace.resources == ("group:g", "consumer-group:new")
    assert trace.after["orders[0]"] == 7


@virtual
async def test_a_replay_says_which_part_of_the_log(bench: Bench) -> None:
    await bench.reset(ResetTo(ResetKind.EARLIEST), orders=(0,))
    command = ReplayCommand("g", "side", offsets=(OffsetRange("orders", 0, 3, 5),))
    trace = await traced(bench, "replay", {"command": command})
    assert trace.resources == ("group:g", "group:side")
    offsets = {"topic": "orders", "partition": 0, "first_offset": 3, "last_offset": 5}
    assert trace.asked == {"into_group_id": "side", "offsets": [offsets], "rate_per_s": 0}
    assert (trace.before, trace.after) == ({}, {"records": 3, "orders[0]": "3 to 5"})


@virtual
async def test_no_payload_of_a_dead_letter_is_in_a_trace(bench: Bench) -> None:
    member = await with_letters(bench)
    await reject(member, 3, 4)
    wanted = LetterFilter(key=b"secret", headers=(("h", b"secret"),), ids=("x",))
    listed = {"group_id": "g", "wanted": wanted, "topic": "dead", "max_letters": 0, "after": ""}
    traces = [await traced(bench, "list_dead_letters", listed)]
    filtered = {
        "key": digest(b"secret"),
        "headers": [["h", digest(b"secret")]],
        "ids": ["x"],
    }
    assert traces[0].resources == ("group:g", "dead-letter-topic:dead")
    assert traces[0].asked == {"wanted": filtered, "topic": "dead", "max_letters": 0}
    place = LetterPlace("dead", 0, 0)
    traces.append(await traced(bench, "show_dead_letter", {"group_id": "g", "place": place}))
    assert traces[1].resources == ("group:g", "dead-letter-topic:dead")
    assert traces[1].asked == {"place": {"topic": "dead", "partition": 0, "offset": 0}}
    command = LetterCommand("g", LetterFilter(), all_letters=True)
    runs = ("redrive_dead_letters", "discard_dead_letters")
    traces += [await traced(bench, name, {"command": command}) for name in runs]
    run_id = traces[2].after["run_id"]
    assert run_id
    assert traces[2].after == {"run_id": run_id, "letters": 2, "orders[0]": 2}
    assert traces[3].after == {"run_id": "", "letters": 0}
    assert traces[2].asked["all_letters"] is True
    await bench.leave(member)
    again = LetterCommand("g", LetterFilter(), all_letters=True, again=True)
    await bench.admin.redrive_dead_letters(again)
    traces.append(await traced(bench, "withdraw_redrive", {"group_id": "g", "topic": ""}))
    assert traces[4].resources == ("group:g",)
    assert "secret" not in json.dumps(traces)


def test_a_refused_call_tells_what_was_asked() -> None:
    given = {"group_id": "g", "set_values": {NAME: "stolen"}, "deleted": ()}
    trace = trace_of("alter_group_configs", given)
    assert trace == Trace(("group:g",), {"set_values": {NAME: "stolen"}}, {}, {})
    # An empty key is a key, too.
    trace = trace_of("list_dead_letters", {"group_id": "g", "wanted": LetterFilter(key=b"")})
    assert trace.asked == {"wanted": {"key": digest(b"")}}
    assert trace_of("describe_coordinator", {}) == Trace((), {}, {}, {})
