"""Effects that happen once: the acknowledgement is a row in the transaction of the effect.

    engine = create_engine("postgresql+psycopg://…")
    outbox, outputs = AckOutbox(), ProduceOutbox()
    outbox.create(engine)
    outputs.create(engine)

    @worker.handler("orders")
    @outbox.once(engine)
    def book(connection, message):
        connection.execute(insert(bookings).values(order=message.value()))
        outputs.produce(connection, "invoices", message.value(), message.key())

    with (
        AckRelay(outbox, engine, {"bootstrap.servers": "localhost:7070"}),
        ProduceRelay(outputs, engine, {"bootstrap.servers": "localhost:9092"},
                     transactional_id="ledger-outputs"),
    ):
        worker.run()

The row of a record and its effect are committed together or not at all. When the record comes
again, because the worker died before its acknowledgement arrived, because its lock ran out, or
because another worker is at it at the same time, the row is there and the handler is not called.
`AckRelay` says what was committed and never acknowledged to the coordinator, in place of a worker
that is gone; the group allows it with `share.ack.outbox=true`. It only saves a delivery: the row
alone is what holds.

What the handler produces is rows of the same transaction, too. `ProduceRelay` sends them in
transactions of Kafka, and each of these says by an offset that it arrived: read-committed consumers
see each record once, in order.

Needs `sharecoord-sdk[sqlalchemy]`, and `sharecoord-sdk[sqlalchemy,kafka]` for `ProduceRelay`.
"""

from ._outbox import AckOutbox, AlreadySettledError
from ._produce_outbox import ProduceOutbox
from ._produce_relay import ProduceRelay, ProduceReport
from ._relay import AckRelay, RelayReport

__all__ = [
    "AckOutbox",
    "AckRelay",
    "AlreadySettledError",
    "ProduceOutbox",
    "ProduceRelay",
    "ProduceReport",
    "RelayReport",
]
