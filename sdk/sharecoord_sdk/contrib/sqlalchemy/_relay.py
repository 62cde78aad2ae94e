"""`AckRelay`: acknowledges an outbox's rows to the coordinator, for workers that are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import Engine, Row, and_, or_, select, update

from sharecoord_sdk._admin.calls import Call
from sharecoord_sdk._proto import share_service_pb2 as share_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb
from sharecoord_sdk.admin import AdminClient, AdminError

from ._outbox import AckOutbox
from ._standstill import short_transaction
from ._thread import RelayThread

#: Rows of one call to the coordinator, and of one transaction.
ROWS_MAX: Final = 1_000

#: A row that could not be settled is said again after so long, doubled up to the second number.
AGAIN_MS: Final = 5_000
AGAIN_MAX_MS: Final = 300_000

#: A relay that stands still in a transaction for so long loses it; others wait for its rows.
STANDSTILL_S: Final = 10.0

#: Keys of one statement: databases limit its parameters, older SQLite to 999.
_KEYS_MAX: Final = 100

_FINAL: Final = (
    types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED,
    # Below the start offset: finished.
    types_pb.ACKNOWLEDGE_OUTCOME_UNKNOWN_OUTCOME,
)

_Member = tuple[str, str]
_Place = tuple[str, str, int]


class RelayReport(NamedTuple):
    """The counts of one run over the outbox, in rows."""

    finished: int
    """Finished at the coordinator, some of them by this look."""
    waiting: int
    """Rows whose lock is gone, or for which nobody could be asked: the record comes again."""
    purged: int
    """Finished long ago, and deleted."""


class AckRelay(RelayThread):
    """Looks at an outbox again and again, in a thread of its own.

    One relay per application is enough; several do no harm.

    Args:
        outbox: The table.
        engine: Of the database that it is in; synchronous, also where handlers use asyncio.
        conf: Address and credentials as of `AdminClient`.
        every_s: Time between two looks.
        keep_s: Rows of finished records are deleted after so long (see `AckOutbox.purge`).
        clock: Seconds since the epoch.

    Raises:
        InvalidConfigError: As `AdminClient`.
        ValueError: A time that is not above 0.
    """

    def __init__(
        self,
        outbox: AckOutbox,
        engine: Engine,
        conf: Mapping[str, Any],
        *,
        every_s: float = 5.0,
        keep_s: float = 7 * 86_400.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (("every_s", every_s), ("keep_s", keep_s)):
            if not value > 0:
                raise ValueError(f"{name} must be more than 0 seconds, not {value}")
        super().__init__("sharecoord-relay")
        self._outbox = outbox
        self._engine = engine
        self._every_s = every_s
        self._keep_s = keep_s
        self._clock = clock
        addresses = str(conf.get("bootstrap.servers", "")).split(",")
        # Each share-partition is settled at its own coordinator: all are asked in turn.
        self._clients = [
            AdminClient({**conf, "bootstrap.servers": address.strip()}) for address in addresses
        ]

    def stop(self) -> None:
        """Ends the thread after the look under way, and closes the connections."""
        self._join()
        for client in self._clients:
            client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except Exception as error:  # noqa: BLE001 - the database may be away for a while
                self._log_once(f"the outbox can not be relayed: {error}")
            self._stop.wait(self._every_s)

    # -- one look -------------------------------------------------------------------------------

    def run_once(self) -> RelayReport:
        """Says everything that is due, and deletes what is old.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: The database does not answer.
        """
        finished = waiting = 0
        while not self._stop.is_set():
            rows = self._due()
            done, other = self._acknowledge(rows)
            finished, waiting = finished + len(done), waiting + len(other)
            self._mark_rows(done, other)
            if len(rows) < ROWS_MAX:
                break
        with short_transaction(self._engine, STANDSTILL_S) as connection:
            purged = self._outbox.purge(connection, keep_s=self._keep_s)
        return RelayReport(finished, waiting, purged)

    def _due(self) -> list[Row[Any]]:
        columns = self._outbox.table.c
        query = (
            select(self._outbox.table)
            .where(columns.relay_at_ms <= int(self._clock() * 1000))
            .order_by(columns.relay_at_ms)
            .limit(ROWS_MAX)
        )
        with self._engine.connect() as connection:
            return list(connection.execute(query))

    def _acknowledge(self, rows: Sequence[Row[Any]]) -> tuple[list[Row[Any]], list[Row[Any]]]:
        """Acknowledges rows; returns the finished ones and the others."""
        done: list[Row[Any]] = []
        open_rows: dict[_Member, list[Row[Any]]] = {}
        newest: dict[tuple[Any, ...], Row[Any]] = {}
        for row in sorted(rows, key=lambda each: each.replay_epoch):
            older = newest.pop(row[:5], None)
            if older is not None:
                # A reset began another life of the record: nobody waits for this one.
                done.append(older)
            newest[row[:5]] = row
        for row in sorted(newest.values(), key=lambda each: tuple(each[:5])):
            open_rows.setdefault((row.group_id, row.member_id), []).append(row)
        other: list[Row[Any]] = []
        for member, wanted in open_rows.items():
            for client in self._clients:
                settled = self._acknowledge_at(client, member, wanted)
                done += settled
                gone = set(map(id, settled))
                wanted = [row for row in wanted if id(row) not in gone]
                if not wanted:
                    break
            other += wanted
        return done, other

    def _acknowledge_at(
        self, client: AdminClient, member: _Member, rows: Sequence[Row[Any]]
    ) -> list[Row[Any]]:
        """Acknowledges rows to one coordinator; returns those whose records are finished."""
        by_place: dict[_Place, list[Row[Any]]] = {}
        for row in rows:
            by_place.setdefault((row.topic, row.topic_id, row.partition_index), []).append(row)
        acknowledgements = [_to_wire(place, of_place) for place, of_place in by_place.items()]
        try:
            outcomes = client._run(_acknowledge_for(*member, acknowledgements))
        except AdminError as error:
            self._log_once(f"acknowledgements of an outbox are not taken: {error.message}")
            return []
        finished: list[Row[Any]] = []
        for outcome in outcomes:
            place = outcome.partition
            of_place = by_place.get((place.topic, place.topic_id.hex(), place.partition), [])
            if not outcome.error_reason:
                finished += [row for row in of_place if _is_finished(row, outcome.exceptions)]
        return finished

    def _mark_rows(self, done: Sequence[Row[Any]], other: Sequence[Row[Any]]) -> None:
        """Marks finished rows, and schedules the others again."""
        if not done and not other:
            return
        table, now_ms = self._outbox.table, int(self._clock() * 1000)
        with short_transaction(self._engine, STANDSTILL_S) as connection:
            for at in range(0, len(done), _KEYS_MAX):
                some = self._match(done[at : at + _KEYS_MAX])
                connection.execute(update(table).where(some).values(relay_at_ms=None))
            for row in other:
                wait_ms = min(max(AGAIN_MS, now_ms - row.settled_at_ms), AGAIN_MAX_MS)
                connection.execute(
                    update(table).where(self._match([row])).values(relay_at_ms=now_ms + wait_ms)
                )

    def _match(self, rows: Iterable[Row[Any]]) -> Any:
        key = list(self._outbox.table.primary_key.columns)
        return or_(*(and_(*(column == row[at] for at, column in enumerate(key))) for row in rows))


def _acknowledge_for(
    group_id: str, member_id: str, acknowledgements: Sequence[types_pb.PartitionAcknowledgements]
) -> Call[Sequence[types_pb.PartitionOutcome]]:
    """A call of Acknowledge for a member that may be gone; harmless to repeat."""
    request = share_pb.AcknowledgeRequest(
        group_id=group_id, member_id=member_id, acknowledgements=acknowledgements
    )
    service = share_pb.DESCRIPTOR.services_by_name["ShareService"]
    return Call(
        f"/{service.full_name}/Acknowledge",
        request,
        share_pb.AcknowledgeResponse,
        attrgetter("outcomes"),
        is_safe=True,
    )


def _to_wire(place: _Place, rows: Sequence[Row[Any]]) -> types_pb.PartitionAcknowledgements:
    """Acknowledgements of one partition's rows; neighbours under one lock are one range."""
    topic, topic_id, partition = place
    found = types_pb.PartitionAcknowledgements(
        partition=types_pb.TopicPartition(
            topic=topic, topic_id=bytes.fromhex(topic_id), partition=partition
        )
    )
    for row in rows:
        last = found.ranges[-1] if found.ranges else None
        if last and (last.last_offset + 1, last.lock_token) == (row.record_offset, row.lock_token):
            last.last_offset = row.record_offset
        else:
            found.ranges.add(
                first_offset=row.record_offset,
                last_offset=row.record_offset,
                type=types_pb.ACKNOWLEDGE_TYPE_ACCEPT,
                lock_token=row.lock_token,
            )
    return found


def _is_finished(row: Row[Any], exceptions: Iterable[types_pb.RangeOutcome]) -> bool:
    for each in exceptions:
        if each.first_offset <= row.record_offset <= each.last_offset:
            return each.outcome in _FINAL
    return True
