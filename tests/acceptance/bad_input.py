"""What the tests of bad input share: one refusal of a process, and a member on bare gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple, Self

import grpc
from sharecoord_sdk._proto import share_service_pb2 as pb
from sharecoord_sdk._proto import share_types_pb2 as types

from sharecoord.config.sources import ENVIRONMENT_PREFIX
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.wire import share_service_pb2_grpc as rpc
from tests.support import eventually, unique_name

ERROR = "sharecoord: error: "
CLI = "import sys; from sharecoord.cli.main import main; sys.exit(main())"
CALL_TIMEOUT_S = 20.0
REFUSAL_TIMEOUT_S = 60.0


class Finished(NamedTuple):
    """A command that ended."""

    exit_code: int
    out: str
    err: str


def run_cli(*arguments: str, environ: Mapping[str, str] | None = None) -> Finished:
    """Runs `sharecoord` with no settings in the environment but those given."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith(ENVIRONMENT_PREFIX)}
    done = subprocess.run(
        [sys.executable, "-c", CLI, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=REFUSAL_TIMEOUT_S,
        env={**ours, **(environ or {})},
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def one_error(text: str) -> str:
    """The error in what a process wrote, which must be one line and nothing else.

    Before it `serve` may say, once, that it still waits for Kafka.
    """
    lines = [line for line in text.splitlines() if "no answer from Kafka yet" not in line]
    assert len(lines) == 1, text
    assert lines[0].startswith(ERROR), text
    return lines[0].removeprefix(ERROR)


def refused(*arguments: str, environ: Mapping[str, str] | None = None) -> str:
    """The one error of a command that must end with exit code 1."""
    done = run_cli(*arguments, environ=environ)
    assert done.exit_code == 1, done
    assert done.out == ""
    return one_error(done.err)


def refusal_of(process: CoordinatorProcess) -> str:
    """The one error of a coordinator that must not start."""
    process.launch()
    try:
        eventually(lambda: process.exit_code is not None, REFUSAL_TIMEOUT_S, "it ends by itself")
        assert process.exit_code == 1, process.log_tail()
        return one_error(process.log_tail())
    finally:
        process.kill()


class Refusal(NamedTuple):
    """How a call failed."""

    code: grpc.StatusCode
    text: str
    reason: str


def refusal(error: grpc.RpcError) -> Refusal:
    """Status, text and reason of a failed call."""
    call: Any = error
    found = dict(call.trailing_metadata() or ())
    return Refusal(call.code(), call.details() or "", str(found.get("sharecoord-reason", "")))


@dataclass
class Holding:
    """What a member got, of one partition."""

    batches: list[types.RecordBatch] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(batch.record_count for batch in self.batches)

    @property
    def partition(self) -> types.TopicPartition:
        return self.batches[0].partition

    @property
    def ranges(self) -> list[types.AcquiredRange]:
        return [item for batch in self.batches for item in batch.ranges]

    def token(self, offset: int) -> int:
        """The lock token of an offset that is held."""
        (found,) = [r for r in self.ranges if r.first_offset <= offset <= r.last_offset]
        return found.lock_token

    def of(
        self,
        first: int,
        last: int,
        kind: int = types.ACKNOWLEDGE_TYPE_ACCEPT,
        *,
        other_token: int | None = None,
    ) -> list[types.AcknowledgedRange]:
        """What to say of offsets that are held, with their tokens (or with another one)."""
        return [
            acknowledged(
                max(first, r.first_offset),
                min(last, r.last_offset),
                r.lock_token if other_token is None else other_token,
                kind,
            )
            for r in self.ranges
            if r.first_offset <= last and r.last_offset >= first
        ]


class Member:
    """A member of a group without the SDK: unary calls, one at a time."""

    def __init__(self, stub: rpc.ShareServiceStub, group: str, topic: str) -> None:
        self.group, self.topic = group, topic
        self.member_id = unique_name("m")
        self.member_epoch = 0
        self._request_id = 0
        self._stub: Any = stub

    def join(self) -> pb.JoinResponse:
        answer: pb.JoinResponse = self._stub.Join(
            pb.JoinRequest(join=join_message(self.group, self.topic, member_id=self.member_id)),
            timeout=CALL_TIMEOUT_S,
        )
        self.member_epoch = answer.joined.member_epoch
        return answer

    def who(self) -> dict[str, Any]:
        """The fields that name this member in every call."""
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.member_epoch,
        }

    def fetch(self, **fields: Any) -> pb.FetchResponse:
        self._request_id = fields.pop("request_id", self._request_id + 1)
        request = pb.FetchRequest(**self.who(), request_id=self._request_id, **fields)
        answer: pb.FetchResponse = self._stub.Fetch(request, timeout=CALL_TIMEOUT_S)
        return answer

    def receive(self, count: int) -> Holding:
        """Fetches until it holds `count` records; what was read first may come by itself."""
        holding = Holding()

        def enough() -> bool:
            left = count - holding.count
            holding.batches.extend(self.fetch(max_records=left, max_wait_ms=1000).batches)
            return holding.count >= count

        eventually(enough, 20, f"{count} records")
        assert holding.count == count, holding
        return holding

    def acknowledge(
        self, partition: types.TopicPartition, *ranges: types.AcknowledgedRange
    ) -> types.PartitionOutcome:
        """The coordinator's word on ranges of one partition."""
        item = types.PartitionAcknowledgements(partition=partition, ranges=ranges)
        request = pb.AcknowledgeRequest(**self.who(), acknowledgements=[item])
        answer: pb.AcknowledgeResponse = self._stub.Acknowledge(request, timeout=CALL_TIMEOUT_S)
        assert len(answer.outcomes) == 1
        return answer.outcomes[0]

    def leave(self) -> None:
        self._stub.Leave(pb.LeaveRequest(**self.who()), timeout=CALL_TIMEOUT_S)


def acknowledged(
    first: int, last: int, token: int, kind: int = types.ACKNOWLEDGE_TYPE_ACCEPT, **fields: Any
) -> types.AcknowledgedRange:
    """An acknowledged range."""
    return types.AcknowledgedRange(
        first_offset=first,
        last_offset=last,
        type=kind,  # type: ignore[arg-type]
        lock_token=token,
        **fields,
    )


def exceptions(outcome: types.PartitionOutcome) -> list[tuple[int, int, str]]:
    """What was not OK: first and last offset and the outcome's short name; neighbours joined."""
    assert outcome.error_reason == "", outcome
    found: list[tuple[int, int, str]] = []
    for e in outcome.exceptions:
        name = types.AcknowledgeOutcome.Name(e.outcome).removeprefix("ACKNOWLEDGE_OUTCOME_")
        if found and found[-1][1:] == (e.first_offset - 1, name):
            found[-1] = (found[-1][0], e.last_offset, name)
        else:
            found.append((e.first_offset, e.last_offset, name))
    return found


def join_message(group: str, *topics: str, **fields: Any) -> pb.Join:
    """A join that is in order, but for what `fields` say."""
    whole: dict[str, Any] = {
        "group_id": group,
        "member_id": unique_name("m"),
        "topics": topics,
        "protocol_version": 1,
        **fields,
    }
    return pb.Join(**whole)


class Stream:
    """A Consume stream on bare gRPC: what is sent is queued, what comes is read on demand."""

    def __init__(self, stub: rpc.ShareServiceStub, *requests: pb.ConsumeRequest) -> None:
        self._outbox: SimpleQueue[pb.ConsumeRequest | None] = SimpleQueue()
        for request in requests:
            self.send(request)
        untyped: Any = stub
        self._call: Any = untyped.Consume(iter(self._outbox.get, None), timeout=CALL_TIMEOUT_S)

    def send(self, request: pb.ConsumeRequest) -> None:
        self._outbox.put(request)

    def next(self) -> pb.ConsumeResponse:
        """The next message; raises grpc.RpcError when the stream failed."""
        answer: pb.ConsumeResponse = next(self._call)
        return answer

    def half_close(self) -> None:
        """Nothing more will be sent."""
        self._outbox.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._call.cancel()
        self.half_close()
