"""`python -m sharecoord_sdk.worker`: what a dry run shows and asks, how it ends, that it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from sharecoord_sdk import Backoff, Message, Reject, Worker
from sharecoord_sdk._proto import admin_service_pb2 as admin_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk.worker.__main__ import conf_of_admin, main

from sharecoord.wire import admin_service_pb2_grpc as admin_grpc
from tests.sdk.fake_coordinator import Ack, FakeCoordinator, Refusal, make_batch

APP = """
from dataclasses import dataclass
from sharecoord_sdk import Message, Worker

@dataclass
class Order:
    id: int

worker = Worker({"bootstrap.servers": "ADDRESS", "group.id": "g"}, 7, tracing=False)

@worker.handler("orders")
async def handle(message: Message, order: Order) -> None: ...

@worker.handler("bills", batch=5)
def store(messages: list[Message]) -> None: ...

@worker.handler("returns", batch=9)
async def take_back(messages: list[Message], orders: list[Order]) -> None: ...

class Nested:
    worker = worker

def make() -> Worker:
    return worker

nothing = 7
"""


@dataclass
class FakeAdmin(admin_grpc.AdminServiceServicer):
    """Answers what a dry run asks."""

    topics: dict[str, int] = field(default_factory=lambda: {"orders": 3, "bills": 1, "returns": 1})
    settings: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def DescribeCoordinator(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append("coordinator")
        return admin_pb.DescribeCoordinatorResponse(
            coordinator_id="c1", version="0.1.0", kafka_bootstrap_servers="kafka:9092"
        )

    def DescribeGroupConfigs(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append(f"settings of {request.group_id}")
        response = admin_pb.DescribeGroupConfigsResponse()
        for name, value in self.settings.items():
            response.entries.add(name=name, value=value, source=admin_pb.CONFIG_SOURCE_GROUP)
        return response

    def ResetOffsets(self, request: Any, context: Any) -> Any:  # noqa: N802
        assert request.dry_run, "nothing is changed"
        self.asked.append("topics")
        response = admin_pb.ResetOffsetsResponse()
        for each in request.topics:
            if each.topic not in self.topics:
                response.partitions.add(
                    partition=types_pb.TopicPartition(topic=each.topic, partition=-1),
                    error_reason="UNKNOWN_TOPIC_OR_PARTITION",
                    error_message=f"the cluster has no topic '{each.topic}'",
                )
            for partition in range(self.topics.get(each.topic, 0)):
                place = types_pb.TopicPartition(topic=each.topic, partition=partition)
                response.partitions.add(partition=place, new_offset=0)
        return response


@pytest.fixture
def app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Callable[..., int]]]:
    """Writes the module `wired_app` for a coordinator; what it gives runs the command on it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(address: str) -> Callable[..., int]:
        (tmp_path / "wired_app.py").write_text(APP.replace("ADDRESS", address), encoding="utf-8")
        return lambda *arguments: main(arguments)

    yield write
    sys.modules.pop("wired_app", None)


@pytest.fixture
def admin() -> Iterator[tuple[FakeAdmin, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    fake = FakeAdmin()
    admin_grpc.add_AdminServiceServicer_to_server(fake, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield fake, f"127.0.0.1:{port}"
    server.stop(None).wait(10)


def test_a_dry_run_shows_the_wiring_and_asks_the_coordinator(
    app: Any, admin: tuple[FakeAdmin, str], capsys: pytest.CaptureFixture[str]
) -> None:
    fake, address = admin
    fake.settings = {"share.ordering": "key", "share.session.timeout.ms": "45000"}
    assert app(address)("wired_app:worker", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"worker of group g at {address} (client sharecoord-sdk)",
        "  concurrency 7, renew_max_s 3600, drain_timeout_s 30, tracing off",
        "  topic orders: handle, async, takes message, value Order",
        "  topic bills: store, plain, on a thread, takes messages, batch 5",
        "  topic returns: take_back, async, takes messages, values Order, batch 9",
        "coordinator c1, version 0.1.0, Kafka at kafka:9092",
        "  share.ordering = key (group)",
        "  topic orders: 3 partitions",
        "  topic bills: 1 partitions",
        "  topic returns: 1 partitions",
        "a run would work",
    ]
    assert fake.asked == ["coordinator", "settings of g", "topics"], "and nobody joined"


def test_a_dry_run_awaits_an_async_callback() -> None:
    async def callback(text: str) -> tuple[str, float]:
        return f"token for {text}", 1e12

    conf = {
        "group.id": "g",
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": callback,
    }
    for_threads = conf_of_admin(Worker(conf))["oauth_cb"]
    assert for_threads("me") == ("token for me", 1e12)


@pytest.mark.parametrize("place", ["wired_app", "wired_app:Nested.worker", "wired_app:make"])
def test_json_and_the_ways_to_name_a_worker(
    place: str, app: Any, admin: tuple[FakeAdmin, str], capsys: pytest.CaptureFixture[str]
) -> None:
    fake, address = admin
    assert app(address)(place, "--dry-run", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["handlers"] == [
        {
            "topic": "orders",
            "handler": "handle",
            "kind": "async",
            "takes": "message, value Order",
        },
        {
            "topic": "bills",
            "handler": "store",
            "kind": "plain, on a thread",
            "takes": "messages",
            "batch": 5,
        },
        {
            "topic": "returns",
            "handler": "take_back",
            "kind": "async",
            "takes": "messages, values Order",
            "batch": 9,
        },
    ]
    assert (found["topics"], found["problems"]) == (fake.topics, [])


def test_what_would_not_work_is_said(
    app: Any, admin: tuple[FakeAdmin, str], capsys: pytest.CaptureFixture[str]
) -> None:
    fake, address = admin
    del fake.topics["orders"]
    fake.settings = {"errors.deadletterqueue.topic.name": "bills"}
    assert app(address)("wired_app", "--dry-run") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "problem: topic orders: the cluster has no topic 'orders'",
        "problem: topic bills: it takes this group's own dead letters; read it with another group",
        "a run would not work",
    ]


def test_a_coordinator_that_is_not_there_and_a_worker_without_handlers(
    app: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = app("127.0.0.1:1")
    conf = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    text = f"import sharecoord_sdk as s\nw = s.Worker({conf})"
    (tmp_path / "wired_app.py").write_text(text, encoding="utf-8")
    assert run("wired_app:w", "--dry-run") == 1
    out = capsys.readouterr().out
    assert "problem: no handler: @worker.handler(topic) registers one" in out
    assert "problem: UNREACHABLE: no coordinator answers at 127.0.0.1:1" in out
    assert run("wired_app:w") == 1
    assert "error: a worker needs a handler" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("no_such_module:worker", "there is no module 'no_such_module' here"),
        ("wired_app.inner:worker", "there is no module 'wired_app.inner' here"),
        (":worker", "':worker' is not MODULE:WORKER"),
        (".wired_app:worker", "'.wired_app:worker' is not MODULE:WORKER"),
        ("wired_app:missing", "module 'wired_app' has no 'missing'; give MODULE:WORKER"),
        ("wired_app:nothing", "wired_app:nothing is int, not a Worker"),
    ],
)
def test_a_worker_that_is_not_there_is_told(
    place: str, text: str, app: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app("127.0.0.1:1")(place, "--dry-run") == 2
    assert capsys.readouterr().err == f"error: {text}\n"


@pytest.mark.parametrize("arguments", [[], ["a:b", "--nonsense"], ["a:b", "-o", "xml"]])
def test_wrong_arguments_end_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_module_that_misses_another_one_says_which(app: Any, tmp_path: Path) -> None:
    run = app("127.0.0.1:1")
    (tmp_path / "wired_app.py").write_text("import no_such_thing", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        run("wired_app", "--dry-run")


def test_without_dry_run_it_runs(coordinator: FakeCoordinator, tmp_path: Path, app: Any) -> None:
    app(coordinator.address)
    command = [sys.executable, "-W", "error", "-m", "sharecoord_sdk.worker", "wired_app:worker"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        stream = coordinator.stream()
        stream.send(make_batch([b'{"id": 7}'], topic="orders"))
        assert stream.wait_acks(1) == [Ack("orders", 0, 0, 0, "ACCEPT", 1)]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_a_worker_that_is_refused_ends_with_one(
    coordinator: FakeCoordinator, app: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator.script.refusals.append(
        Refusal(grpc.StatusCode.PERMISSION_DENIED, "not you", "AUTHORIZATION_FAILED")
    )
    assert app(coordinator.address)("wired_app") == 1
    assert "not you" in capsys.readouterr().err


def test_describe_gives_plain_values() -> None:
    worker = Worker({"bootstrap.servers": "a:1,b:2", "group.id": "g", "client.id": "c"})

    @worker.handler("t")
    def handle(message: Message) -> None: ...

    found = worker.describe()
    assert json.loads(json.dumps(found)) == found
    assert (found["coordinators"], found["client"]) == (["a:1", "b:2"], "c")
    assert found["handlers"][0]["takes"] == "message"


def test_describe_tells_what_a_handler_was_told() -> None:
    worker = Worker({"bootstrap.servers": "a:1", "group.id": "g"})

    @worker.middleware
    async def timed(message: Message, call_next: Any) -> Any:
        return await call_next(message)

    @worker.handler("t", ordering="key", retry=Backoff(2), on_error={ValueError: Reject}, timeout=3)
    def handle(message: Message) -> None: ...

    found = worker.describe()
    assert json.loads(json.dumps(found)) == found
    assert found["middleware"] == [timed.__qualname__]
    told = found["handlers"][0]
    assert (told["ordering"], told["timeout"]) == ("key", 3)
    assert told["retry"].startswith("Backoff(first_s=2,")
    assert told["on_error"] == {"ValueError": "Reject"}
