"""Who gets in over gRPC, as whom, and what becomes of those who may not."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from sharecoord.api.grpc.admin_service import AdminService
from sharecoord.api.grpc.server import bind, make_server
from sharecoord.config.endpoints import TcpAddress
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.admin.operators import Operators
from sharecoord.security.audit import AuditLog
from sharecoord.security.files import WatchedFiles
from sharecoord.security.guard import Guard
from sharecoord.security.rules import SETTING as RULES
from sharecoord.security.rules import Rules, read_rules
from sharecoord.security.tokens import SETTING as TOKENS
from sharecoord.security.tokens import read_tokens
from sharecoord.testing.fake_log import FakeLog
from sharecoord.wire import admin_service_pb2 as admin_pb
from sharecoord.wire import share_service_pb2 as share
from sharecoord.wire import share_types_pb2 as types
from tests.access import access_of
from tests.support import eventually_async
from tests.world import World

INFO = CoordinatorInfo("1.2.3", "fake-cluster", "kafka:9092", "memory:")
NAMES = ("worker", "stranger", "operator", "robot")
BASE = """
rules:
  - allow: [consume]
    principals: ["User:worker", "User:robot"]
    resources: ["group:g", "topic:orders"]
  - allow: [describe, configure, pause, delete]
    principals: ["User:operator"]
    resources: ["group:g*", cluster]
"""


class Lines:
    """A sink of audit lines that keeps them."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, lines: Sequence[bytes]) -> int:
        self.lines += map(json.loads, lines)
        return len(lines)

    def close(self) -> None:
        """Nothing is open."""


class Served:
    """A coordinator with tokens and rules, behind a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.rules_file = folder / "rules.yaml"
        self.tokens_file = tokens_file = folder / "tokens.yaml"
        self.rules_file.write_text(BASE)
        tokens_file.write_text(
            "".join(
                f"- name: {name}\n"
                f"  sha256: {hashlib.sha256(secret_of(name).encode()).hexdigest()}\n"
                for name in NAMES
            )
        )
        self.tokens = WatchedFiles({TOKENS: str(tokens_file)}, read_tokens)
        self.rules: WatchedFiles[Rules] = WatchedFiles(
            {RULES: str(self.rules_file)}, lambda contents: read_rules(contents[RULES])
        )
        self.trail = Lines()
        self.audit = AuditLog(self.trail, queue_max_bytes=1 << 20)
        self.now_ms = 1_000
        self.channels: list[grpc.aio.Channel] = []

    async def start(self) -> None:
        log = FakeLog()
        log.create("orders")
        log.create("secrets")
        log.append("orders", 100)
        world = World(log)
        world.make_guard = lambda name: Guard(
            self.rules, self.audit, coordinator_id=name, now_ms=lambda: self.now_ms
        )
        self.coordinator = await world.start()
        access = access_of(
            self.coordinator, tokens=self.tokens, must_prove=False, now_ms=lambda: self.now_ms
        )
        self.coordinator.context.guard.holds = access.authenticator.holds
        self.server, _ = make_server(
            self.coordinator, access, request_bytes_max=1 << 20, shares_port=False
        )
        operators = Operators(Admin(self.coordinator, INFO), self.coordinator)
        self.server.add_generic_rpc_handlers((AdminService(operators, access).handlers(),))
        self.address = str(bind(self.server, TcpAddress("127.0.0.1", 0), None))
        await self.server.start()

    async def stop(self) -> None:
        for channel in self.channels:
            await channel.close()
        await self.server.stop(0)
        await self.coordinator.close()
        await self.audit.close()

    def change_rules(self, text: str) -> None:
        """Writes other rules, and lets them be looked at as each second."""
        self.rules_file.write_text(text)
        assert self.rules.look()
        self.coordinator.groups.admission.look()

    @property
    def channel(self) -> Any:
        channel = grpc.aio.insecure_channel(self.address)
        self.channels.append(channel)
        return channel

    async def ask(self, name: str | None, method: str, request: Any, answer: Any) -> Any:
        """The answer of a unary call by somebody."""
        call = self.channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await call(request, metadata=shown_by(name))

    def stream(self, name: str | None) -> Any:
        """A stream of somebody."""
        return self.channel.stream_stream(
            "/sharecoord.v1.ShareService/Consume",
            request_serializer=share.ConsumeRequest.SerializeToString,
            response_deserializer=share.ConsumeResponse.FromString,
        )(metadata=shown_by(name))

    async def joined(self, name: str, member_id: str = "m", group: str = "g") -> Any:
        """A stream whose member has joined."""
        stream = self.stream(name)
        await stream.write(a_join(member_id, group))
        first = await stream.read()
        assert first.HasField("joined")
        return stream


def secret_of(name: str) -> str:
    return f"sct_{name}-secret"


def shown_by(name: str | None) -> tuple[tuple[str, str], ...]:
    return () if name is None else (("authorization", f"Bearer {secret_of(name)}"),)


def a_join(member_id: str = "m", group: str = "g", topic: str = "orders") -> share.ConsumeRequest:
    join = share.Join(group_id=group, member_id=member_id, topics=[topic], protocol_version=1)
    join.credit.CopyFrom(types.Credit(records_total=10, bytes_total=1 << 20))
    return share.ConsumeRequest(join=join)


async def refusal_of(call: Any) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason and text of a call that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    error: Any = raised.value
    reason = dict(error.trailing_metadata()).get("sharecoord-reason", "")
    return error.code(), str(reason), str(error.details())


async def end_of(stream: Any) -> tuple[grpc.StatusCode, str, str]:
    """As `refusal_of`, of a stream: what comes before is read."""

    async def read() -> None:
        while await stream.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            pass
        # A stream that ended in order.
        raise AssertionError(await stream.code())

    return await refusal_of(read())


async def batches_of(stream: Any) -> list[types.RecordBatch]:
    """The records of the next delivery."""
    while True:
        message = await stream.read()
        if message.batches:
            return list(message.batches)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    made = Served(tmp_path)
    await made.start()
    async with asyncio.timeout(60):
        yield made
        await made.stop()


DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED


async def told(served: Served, count: int) -> list[dict[str, Any]]:
    """The first lines of the trail, once there are so many."""
    await eventually_async(lambda: len(served.trail.lines) >= count, 10)
    return served.trail.lines


# -- members --------------------------------------------------------------------------------------


async def test_who_may_consume_gets_records(served: Served) -> None:
    stream = await served.joined("worker")
    assert await batches_of(stream)
    assert served.trail.lines == []


@pytest.mark.parametrize("name", ["stranger", "operator", None])
async def test_who_may_not_consume_gets_no_stream(served: Served, name: str | None) -> None:
    stream = served.stream(name)
    await stream.write(a_join())
    code, reason, text = await end_of(stream)
    assert (code, reason) == (DENIED, "AUTHORIZATION_FAILED")
    assert f"User:{name or 'anonymous'} may not consume group:g" in text
    (line,) = await told(served, 1)
    assert (line["outcome"], line["call"]) == ("refused", "Join")
    assert line["resources"] == ["group:g"]
    assert not served.coordinator.groups


async def test_a_topic_has_to_be_allowed_as_well(served: Served) -> None:
    stream = served.stream("worker")
    await stream.write(a_join(topic="secrets"))
    assert "may not consume topic:secrets" in (await end_of(stream))[2]


async def test_a_subscription_is_checked_like_a_join(served: Served) -> None:
    stream = await served.joined("worker")
    subscription = share.Subscription(topics=["orders", "secrets"])
    await stream.write(share.ConsumeRequest(subscription=subscription))
    assert "may not consume topic:secrets" in (await end_of(stream))[2]


@pytest.mark.parametrize(
    "shown",
    ["Bearer sct_wrong", "Basic d29ya2VyOnNjdF93cm9uZw==", "Bearer a.b.c", "Digest x", "nonsense"],
)
async def test_wrong_credentials_get_nobody_in(served: Served, shown: str) -> None:
    call = served.channel.unary_unary("/sharecoord.v1.AdminService/ListGroups")
    code, reason, text = await refusal_of(call(b"", metadata=(("authorization", shown),)))
    assert (code, reason) == (UNKNOWN, "UNAUTHENTICATED")
    assert "wrong" not in text
    (line,) = await told(served, 1)
    assert (line["principal"], line["outcome"]) == ("User:anonymous", "refused")


async def test_two_authorizations_are_none(served: Served) -> None:
    call = served.channel.unary_unary("/sharecoord.v1.AdminService/ListGroups")
    both = (*shown_by("worker"), *shown_by("operator"))
    assert (await refusal_of(call(b"", metadata=both)))[0] is UNKNOWN


async def test_nobody_takes_over_the_member_of_another_principal(served: Served) -> None:
    mine = await served.joined("worker", "m")
    session = served.coordinator.groups["g"].sessions["m"]
    thief = served.stream("robot")
    await thief.write(a_join("m"))
    assert "another principal's" in (await end_of(thief))[2]
    epoch = session.member_epoch
    heartbeat = share.HeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch)
    method = "/sharecoord.v1.ShareService/Heartbeat"
    refused = served.ask("robot", method, heartbeat, share.HeartbeatResponse)
    assert (await refusal_of(refused))[0] is DENIED
    await served.ask("worker", method, heartbeat, share.HeartbeatResponse)
    assert served.coordinator.groups["g"].sessions["m"] is session
    mine.cancel()


async def test_who_may_not_consume_is_not_told_which_groups_there_are(served: Served) -> None:
    await served.joined("worker", "m")
    method = "/sharecoord.v1.ShareService/Heartbeat"
    answers = set()
    for group, member in (("g", "m"), ("g", "other"), ("nowhere", "m")):
        request = share.HeartbeatRequest(group_id=group, member_id=member, member_epoch=1)
        call = served.ask("stranger", method, request, share.HeartbeatResponse)
        code, _, text = await refusal_of(call)
        answers.add((code, text.replace(f"group:{group}", "GROUP")))
    assert len(answers) == 1
    assert answers.pop()[0] is DENIED


async def test_acknowledging_in_a_members_name_needs_a_right_of_its_own(served: Served) -> None:
    await served.joined("worker", "m")
    request = share.AcknowledgeRequest(group_id="g", member_id="m")
    method = "/sharecoord.v1.ShareService/Acknowledge"
    call = served.ask("worker", method, request, share.AcknowledgeResponse)
    assert "may not settle group:g" in (await refusal_of(call))[2]


# -- who may not stay -----------------------------------------------------------------------------


async def test_a_member_goes_when_the_rules_change_against_it(served: Served) -> None:
    stream = await served.joined("worker", "m")
    other = await served.joined("robot", "r")
    await batches_of(stream)
    served.change_rules(BASE.replace('"User:worker", ', ""))
    code, reason, text = await end_of(stream)
    assert (code, reason) == (DENIED, "AUTHORIZATION_FAILED")
    assert "no line of the rules allows it" in text
    sessions = served.coordinator.groups["g"].sessions
    assert set(sessions) == {"r"}
    # Its records go to the member that stays.
    await other.write(
        share.ConsumeRequest(credit=types.Credit(records_total=200, bytes_total=1 << 22))
    )
    counts: set[int] = set()
    while 2 not in counts:
        counts |= {
            each.delivery_count for batch in await batches_of(other) for each in batch.ranges
        }


async def test_a_member_goes_when_its_token_is_revoked(served: Served) -> None:
    stream = await served.joined("worker", "m")
    await served.joined("robot", "r")
    kept = [each for each in served.tokens_file.read_text().split("- ") if "worker" not in each]
    served.tokens_file.write_text("- ".join(kept))
    assert served.tokens.look()
    served.coordinator.groups.admission.look()
    code, reason, text = await end_of(stream)
    assert (code, reason) == (UNKNOWN, "UNAUTHENTICATED")
    assert "were revoked" in text
    assert set(served.coordinator.groups["g"].sessions) == {"r"}


async def test_rules_that_can_not_be_read_change_nothing(served: Served) -> None:
    stream = await served.joined("worker")
    served.rules_file.write_text("rules:\n  - alow: [consume]\n")
    assert not served.rules.look()
    assert 'did you mean "allow"?' in served.rules.problem
    served.coordinator.groups.admission.look()
    assert set(served.coordinator.groups["g"].sessions) == {"m"}
    stream.cancel()


# -- operators ------------------------------------------------------------------------------------

LIST = "/sharecoord.v1.AdminService/ListGroups"
DESCRIBE = "/sharecoord.v1.AdminService/DescribeGroups"
ALTER = "/sharecoord.v1.AdminService/AlterGroupConfigs"
DELETE = "/sharecoord.v1.AdminService/DeleteGroups"
DLQ = "errors.deadletterqueue.topic.name"


async def test_lists_show_what_may_be_described(served: Served) -> None:
    await served.joined("worker")
    for name, seen in (("operator", ["g"]), ("worker", []), (None, [])):
        listed = await served.ask(
            name, LIST, admin_pb.ListGroupsRequest(), admin_pb.ListGroupsResponse
        )
        assert [each.group_id for each in listed.groups] == seen
        described = await served.ask(
            name, DESCRIBE, admin_pb.DescribeGroupsRequest(), admin_pb.DescribeGroupsResponse
        )
        assert [each.group_id for each in described.groups] == seen


async def test_a_description_tells_who_members_are(served: Served) -> None:
    await served.joined("worker")
    request = admin_pb.DescribeGroupsRequest(group_ids=["g"], include_members=True)
    described = await served.ask("operator", DESCRIBE, request, admin_pb.DescribeGroupsResponse)
    (member,) = described.groups[0].members
    assert (member.member_id, member.principal) == ("m", "User:worker")


async def test_each_of_several_groups_is_answered_by_itself(served: Served) -> None:
    await served.joined("worker")
    request = admin_pb.DescribeGroupsRequest(group_ids=["other", "g"])
    described = await served.ask("operator", DESCRIBE, request, admin_pb.DescribeGroupsResponse)
    assert [(each.group_id, each.error_reason) for each in described.groups] == [
        ("other", "AUTHORIZATION_FAILED"),
        ("g", ""),
    ]


async def test_a_change_leaves_its_trace(served: Served) -> None:
    request = admin_pb.AlterGroupConfigsRequest(group_id="g")
    request.set["share.delivery.count.limit"] = "7"
    await served.ask("operator", ALTER, request, admin_pb.AlterGroupConfigsResponse)
    (line,) = await told(served, 1)
    assert (line["principal"], line["call"], line["outcome"]) == (
        "User:operator",
        "alter_group_configs",
        "ok",
    )
    assert line["after"] == {"share.delivery.count.limit": "7"}
    assert line["before"] == {"share.delivery.count.limit": "5"}
    assert served.coordinator.groups["g"].made_by == "User:operator"


async def test_values_count_too(served: Served) -> None:
    request = admin_pb.AlterGroupConfigsRequest(group_id="g")
    request.set[DLQ] = "secrets"
    call = served.ask("operator", ALTER, request, admin_pb.AlterGroupConfigsResponse)
    assert "may not write dead-letter-topic:secrets" in (await refusal_of(call))[2]
    (line,) = await told(served, 1)
    assert line["asked"]["set_values"] == {DLQ: "secrets"}


async def test_a_pause_names_its_principal(served: Served) -> None:
    await served.joined("worker")
    request = admin_pb.PauseGroupRequest(group_id="g")
    pause = "/sharecoord.v1.AdminService/PauseGroup"
    await served.ask("operator", pause, request, admin_pb.PauseGroupResponse)
    group = served.coordinator.groups["g"].pauses.group
    assert group is not None
    assert group.by == "User:operator"


async def test_who_may_do_what_is_told_to_those_who_may_ask(served: Served) -> None:
    method = "/sharecoord.v1.AdminService/DescribeAccess"
    question = admin_pb.DescribeAccessRequest(
        principal="User:worker", action="consume", resource="group:g"
    )
    for name in ("worker", "operator"):
        call = served.ask(name, method, question, admin_pb.DescribeAccessResponse)
        assert "may not audit cluster:sharecoord" in (await refusal_of(call))[2]
    auditor = """
  - allow: [audit]
    principals: ["User:operator"]
    resources: [cluster]
"""
    served.change_rules(BASE + auditor)
    for resource, allowed, line in (("group:g", True, 3), ("group:h", False, 0)):
        question.resource = resource
        answer = await served.ask("operator", method, question, admin_pb.DescribeAccessResponse)
        assert (answer.allowed, answer.line) == (allowed, line)
    question.action = "consum"
    call = served.ask("operator", method, question, admin_pb.DescribeAccessResponse)
    assert 'did you mean "consume"?' in (await refusal_of(call))[2]


# -- quotas ---------------------------------------------------------------------------------------


async def test_quotas_hold_for_each_principal(served: Served) -> None:
    served.change_rules(
        BASE
        + """
quotas:
  - principals: ["User:worker"]
    members: 1
    records_in_flight: 4
  - principals: ["*"]
    admin_requests_per_s: 0.1
"""
    )
    first = await served.joined("worker", "m1")
    second = served.stream("worker")
    await second.write(a_join("m2"))
    code, reason, text = await end_of(second)
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert "members in security.rules.file" in text
    await served.joined("robot", "m3")
    assert await batches_of(first)
    assert served.coordinator.groups["g"].totals["m1"] <= 4
    request = admin_pb.ListGroupsRequest()
    await served.ask("operator", LIST, request, admin_pb.ListGroupsResponse)
    refused = served.ask("operator", LIST, request, admin_pb.ListGroupsResponse)
    assert (await refusal_of(refused))[1] == "QUOTA_EXCEEDED"


async def test_a_stream_is_shown_a_new_credential(served: Served) -> None:
    stream = await served.joined("worker")
    renewed = share.ConsumeRequest(authorization=f"Bearer {secret_of('worker')}")
    await stream.write(renewed)
    await stream.write(share.ConsumeRequest(polled=True))
    await eventually_async(lambda: served.coordinator.groups["g"].sessions["m"].caller, 10)
    stolen = share.ConsumeRequest(authorization=f"Bearer {secret_of('robot')}")
    await stream.write(stolen)
    assert "another principal's" in (await end_of(stream))[2]
