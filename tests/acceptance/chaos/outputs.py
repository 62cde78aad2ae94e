"""A worker whose outputs are rows, and a relay that sends them; both die or stand still on request.

`python -m tests.acceptance.chaos.outputs worker --address … --group … --topic … --database URL …`
`python -m tests.acceptance.chaos.outputs relay --kafka … --database URL …`
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from typing import Any, Final

import confluent_kafka
from sharecoord_sdk import Message, Worker
from sharecoord_sdk.contrib.sqlalchemy import AckOutbox, ProduceOutbox, ProduceRelay
from sqlalchemy import Connection, create_engine, text

WORKER_POINTS: Final = ("effect", "output", "committed")
"""Of one record: behind its effect, behind its outputs, behind the commit of all of it."""

RELAY_POINTS: Final = ("opened", "claimed", "produced", "offsets", "committed")
"""Behind the fence; of a transaction: behind the rows' own commit, in the middle of its records,
behind its mark, and behind its commit, before the rows are deleted."""

EFFECT: Final = text("INSERT INTO effect (record_offset) VALUES (:record_offset)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("worker", "relay"))
    for name in ("address", "group", "topic", "output", "kafka"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--database", required=True)
    parser.add_argument("--id", default="")
    parser.add_argument("--point", choices=(*WORKER_POINTS, *RELAY_POINTS, "nowhere"))
    parser.add_argument(
        "--at", type=int, default=-1, help="least offset, or number of a transaction"
    )
    parser.add_argument("--signal", type=int, default=int(signal.SIGKILL))
    given = parser.parse_args()
    (work if given.role == "worker" else relay)(given)


def work(given: argparse.Namespace) -> None:
    def reach(point: str, message: Message) -> None:
        # Or beyond: what a worker held that was killed comes behind what nobody has held yet.
        if point == given.point and message.offset() >= given.at:
            os.kill(os.getpid(), given.signal)

    engine = create_engine(given.database)
    outbox, outputs = AckOutbox(), ProduceOutbox()
    worker = Worker({"bootstrap.servers": given.address, "group.id": given.group}, concurrency=1)

    @outbox.once(engine)
    def effect(connection: Connection, message: Message) -> None:
        connection.execute(EFFECT, {"record_offset": message.offset()})
        reach("effect", message)
        outputs.produce(connection, given.output, f"{message.offset()} first")
        outputs.produce(connection, given.output, f"{message.offset()} second")
        reach("output", message)

    @worker.handler(given.topic)
    def handle(message: Message) -> None:
        effect(message)
        reach("committed", message)

    worker.run()


def relay(given: argparse.Namespace) -> None:
    class Producer(confluent_kafka.Producer):
        """Ends the process in its transaction number `--at`."""

        transactions = 0
        records = 0

        def _reach(self, point: str) -> None:
            if (point, self.transactions) == (given.point, given.at):
                os.kill(os.getpid(), given.signal)

        def init_transactions(self, *arguments: Any) -> None:
            super().init_transactions(*arguments)
            if given.point == "opened":
                self.transactions = given.at
            self._reach("opened")

        def begin_transaction(self) -> None:
            self.transactions += 1
            self.records = 0
            self._reach("claimed")
            super().begin_transaction()

        def produce(self, *arguments: Any, **named: Any) -> None:
            super().produce(*arguments, **named)
            self.records += 1
            if self.records == 2:
                # They are in Kafka, and the transaction is open.
                if (given.point, given.at) == ("produced", self.transactions):
                    self.flush()
                self._reach("produced")

        def send_offsets_to_transaction(self, *arguments: Any) -> None:
            super().send_offsets_to_transaction(*arguments)
            self._reach("offsets")

        def commit_transaction(self, *arguments: Any) -> None:
            super().commit_transaction(*arguments)
            self._reach("committed")

    confluent_kafka.Producer = Producer  # type: ignore[misc]
    conf = {"bootstrap.servers": given.kafka}
    with ProduceRelay(
        ProduceOutbox(),
        create_engine(given.database),
        conf,
        transactional_id=given.id,
        every_s=0.05,
        takeover_s=0.5,
        rows_max=3,
    ):
        threading.Event().wait()


if __name__ == "__main__":
    main()
