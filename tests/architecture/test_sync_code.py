"""The SDK's synchronous code is what its asynchronous code gives."""

from __future__ import annotations

import pytest

from tools import async_to_sync


@pytest.mark.parametrize("source", async_to_sync.MODULES, ids=lambda path: path.name)
def test_generated_modules_are_current(source: async_to_sync.Path) -> None:
    kept = async_to_sync.MODULES[source].read_text(encoding="utf-8")
    assert async_to_sync.generated(source) == kept, "run: make sync"


def test_texts_and_comments_stay_as_they_are() -> None:
    source = (
        "async def f(a: grpc.aio.Channel) -> None:\n"
        '    """Await AsyncAdminClient."""  # async\n'
        "    async with await open_aio_channel(a) as c:\n"
        '        await c.close(None, f"await {x}")\n'
    )
    assert async_to_sync.rewritten(source) == (
        "def f(a: grpc.Channel) -> None:\n"
        '    """Await AsyncAdminClient."""  # async\n'
        "    with open_channel(a) as c:\n"
        '        c.close(None, f"await {x}")\n'
    )
