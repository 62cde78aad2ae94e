"""Where a handler runs: each record has its task, and a copy of the application's context."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sharecoord_sdk import Message, Worker
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker

from tests.sdk.fake_coordinator import FakeCoordinator, make_batch
from tests.sdk.worker_running import Make, covered, values, wait_covered

TENANT: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="")
KINDS = ["async", "plain"]


def handler_of(kind: str, work: Callable[[Any], None], *, suspends: bool = False) -> Any:
    async def coroutine(argument: Any) -> None:
        work(argument)
        if suspends:
            await asyncio.sleep(0)

    return coroutine if kind == "async" else work


async def run_in_application(
    coordinator: FakeCoordinator, count: int, register: Callable[[Worker], None], **settings: Any
) -> None:
    """Runs a worker over so many records in this loop, and in this context."""
    conf = {"bootstrap.servers": coordinator.address, "group.id": "g"}
    worker = Worker(conf, **settings)
    register(worker)
    run = asyncio.create_task(worker.run_async())
    stream = await asyncio.to_thread(coordinator.stream)
    stream.send(make_batch(values(count)))
    await asyncio.to_thread(
        stream.wait_for, lambda s: len(covered(s.acks())) == count and len(s.acks())
    )
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}
    worker.stop()
    await run


@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("around", ["nothing", "middleware", "timeout"])
@pytest.mark.parametrize("kind", KINDS)
async def test_handlers_see_the_applications_context_and_change_a_copy(
    coordinator: FakeCoordinator, kind: str, around: str, batch: int | None
) -> None:
    seen: list[str] = []
    TENANT.set("acme")

    def work(_: Any) -> None:
        seen.append(TENANT.get())
        TENANT.set("left behind")

    def register(worker: Worker) -> None:
        timeout = 20 if around == "timeout" else None
        worker.handler("t", batch=batch, timeout=timeout)(handler_of(kind, work, suspends=True))
        if around == "middleware":

            @worker.middleware
            async def through(argument: Any, call_next: Callable[[Any], Any]) -> Any:
                seen.append(TENANT.get())
                return await call_next(argument)

    await run_in_application(coordinator, 4, register, concurrency=1)
    assert set(seen) == {"acme"}
    assert TENANT.get() == "acme"


@pytest.mark.parametrize("suspends", [False, True])
def test_each_record_has_a_task_of_its_own(make: Make, *, suspends: bool) -> None:
    running, tasks = make(concurrency=2), list[tuple[Any, Any]]()

    @running.worker.middleware
    async def through(message: Message, call_next: Callable[[Message], Any]) -> Any:
        outer = asyncio.current_task()
        found = await call_next(message)
        tasks.append((outer, asyncio.current_task()))
        return found

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        tasks.append((asyncio.current_task(), None))
        if suspends:
            await asyncio.sleep(0)

    stream = running.start()
    stream.send(make_batch(values(6)))
    wait_covered(stream, 6)
    running.stop()
    assert len({id(outer) for outer, _ in tasks}) == 6, "the tasks are kept, so no id comes twice"
    assert all(outer is after for outer, after in tasks if after is not None)


def test_a_session_by_task_is_another_for_each_record(make: Make) -> None:
    """As applications of SQLAlchemy have them; those that forget `remove()` included."""
    running, sessions = make(concurrency=1), list[Any]()
    session = async_scoped_session(async_sessionmaker(), scopefunc=asyncio.current_task)

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        mine = session()
        assert not mine.info, "what another record has left"
        mine.info["offset"] = message.offset()
        await asyncio.sleep(0)
        assert session() is mine
        sessions.append(mine)

    stream = running.start()
    stream.send(make_batch(values(5)))
    wait_covered(stream, 5)
    running.stop()
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}
    assert len({id(each) for each in sessions}) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_middleware_runs_in_the_span_of_the_handler(kind: str, make: Make) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    running, spans = make(tracing=provider), list[Any]()

    @running.worker.middleware
    async def through(message: Message, call_next: Callable[[Message], Any]) -> Any:
        spans.append(trace.get_current_span())
        return await call_next(message)

    def work(_: Message) -> None:
        spans.append(trace.get_current_span())

    running.worker.handler("t")(handler_of(kind, work))
    stream = running.start()
    stream.send(make_batch(values(1)))
    wait_covered(stream, 1)
    running.stop()
    provider.shutdown()
    outer, inner = spans
    assert outer is inner
    assert outer.name == "process t"
    assert outer.end_time is not None
