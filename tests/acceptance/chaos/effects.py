"""A worker whose effects are rows of a database of its own; it dies or stands still on request.

`python -m tests.acceptance.chaos.effects --address … --group … --topic … --database URL`
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Final

from sharecoord_sdk import Message, Worker
from sharecoord_sdk.contrib.sqlalchemy import AckOutbox
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

POINTS: Final = ("nowhere", "before", "row", "effect", "committed")
"""Of one record: before its transaction, behind its row in the outbox, behind its effect, behind
the commit of both."""

EFFECT: Final = text("INSERT INTO effect (record_offset, who) VALUES (:record_offset, :who)")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("address", "group", "topic", "database", "who"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--point", choices=POINTS, default="nowhere")
    parser.add_argument("--offset", type=int, default=-1)
    parser.add_argument("--signal", type=int, default=int(signal.SIGKILL))
    parser.add_argument("--asyncio", action="store_true")
    given = parser.parse_args()

    def reach(point: str, message: Message) -> None:
        if (point, message.offset()) == (given.point, given.offset):
            os.kill(os.getpid(), given.signal)

    def note(message: Message) -> None:
        # In one piece, also from several threads.
        os.write(sys.stdout.fileno(), f"got {message.offset()}\n".encode())

    def values(message: Message) -> dict[str, object]:
        return {"record_offset": message.offset(), "who": given.who}

    # A relay of the test may follow this worker at once.
    outbox = AckOutbox(relay_after_s=0.2)
    worker = Worker({"bootstrap.servers": given.address, "group.id": given.group}, concurrency=4)

    if given.asyncio:
        aio = create_async_engine(given.database)

        @outbox.once(aio)
        async def effect_async(connection: AsyncConnection, message: Message) -> None:
            reach("row", message)
            await connection.execute(EFFECT, values(message))
            reach("effect", message)

        @worker.handler(given.topic)
        async def handle_async(message: Message) -> None:
            note(message)
            reach("before", message)
            await effect_async(message)
            reach("committed", message)
    else:
        engine = create_engine(given.database)

        @outbox.once(engine)
        def effect(connection: Connection, message: Message) -> None:
            reach("row", message)
            connection.execute(EFFECT, values(message))
            reach("effect", message)

        @worker.handler(given.topic)
        def handle(message: Message) -> None:
            note(message)
            reach("before", message)
            effect(message)
            reach("committed", message)

    worker.run()


if __name__ == "__main__":
    main()
