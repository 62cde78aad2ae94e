"""Shared looks at topics: one request at a time for all callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sharecoord.errors import KafkaUnavailableError, SharecoordError
from sharecoord.ports import TopicInfo

LOOK_TIMEOUT_S = 2.0
"""A look without an answer has failed after this time; the caller may ask again."""

LOOK_INTERVAL_S = 0.01
"""Time from one look to the next: hundreds of topics that wake up share 100 looks a second."""

Describe = Callable[[Sequence[str]], Awaitable[Mapping[str, TopicInfo | SharecoordError]]]
"""Topics that exist, or why there is no answer for one of them; others do not exist."""

Waiter = asyncio.Future[TopicInfo | None]


class SharedLooks:
    """Answers `ports.TopicCatalog.look` with as few requests as possible."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._wanted: dict[str, Waiter] = {}
        self._task: asyncio.Task[None] | None = None

    async def look(self, topic: str) -> TopicInfo | None:
        """See `ports.TopicCatalog.look`."""
        waiter = self._wanted.get(topic)
        if waiter is None:
            waiter = self._wanted[topic] = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="topic-looks")
        # A caller that gives up waiting does not end the look for the others.
        return await asyncio.shield(waiter)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._wanted:
            next_s = loop.time() + LOOK_INTERVAL_S
            asked, self._wanted = self._wanted, {}
            try:
                await self._answer(asked)
            finally:
                for waiter in asked.values():
                    waiter.cancel()
            await asyncio.sleep(max(0.0, next_s - loop.time()))

    async def _answer(self, asked: dict[str, Waiter]) -> None:
        found: Mapping[str, TopicInfo | SharecoordError] = {}
        failure: Exception | None = None
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                found = await self._describe(sorted(asked))
        except TimeoutError:
            failure = KafkaUnavailableError(
                f"Kafka did not describe {', '.join(sorted(asked))} within {LOOK_TIMEOUT_S:g} s",
                retry_after_ms=1000,
            )
        except Exception as error:  # noqa: BLE001 - told to all who asked
            failure = error
        for topic, waiter in asked.items():
            answer = found.get(topic) if failure is None else failure
            if isinstance(answer, Exception):
                waiter.set_exception(answer)
                waiter.exception()  # marked as seen: all callers may have gone
            else:
                waiter.set_result(answer)

    async def close(self) -> None:
        """Ends the look under way and cancels its waiters."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for waiter in self._wanted.values():
            waiter.cancel()
        self._wanted = {}
