"""Health and metrics on a thread and loop of their own, so that probes answer under load."""

from __future__ import annotations

import asyncio
import errno
import hmac
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from typing import Final

import prometheus_client
import structlog
import uvicorn
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sharecoord import __version__
from sharecoord.config.endpoints import ALL_INTERFACES
from sharecoord.errors import InvalidConfigError
from sharecoord.ports import EventFigures, ProducerFigures
from sharecoord.runtime.memory.use import MemoryFigures, MemoryLevel
from sharecoord.runtime.status.status import (
    ConnectionFigures,
    GroupFigures,
    PartitionFigures,
    Snapshot,
    StatusBoard,
)
from sharecoord.security.audit import AuditFigures
from sharecoord.security.files import Watched, WatchedFiles
from sharecoord.security.key_pairs import PresentContext, ServerTls
from sharecoord.security.quotas import Use

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 5.0

TOKEN_FILE: Final = "management.metrics.token.file"

_TOKEN: Final = re.compile(rb"[\x21-\x7e]{16,1024}")
"""A token as a header can carry it; a shorter one could be guessed."""


class BoardCollector(Collector):
    """Metrics out of the latest snapshot; none is counted here again."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board

    def collect(self) -> Iterable[Metric]:
        """All metrics (names: docs/operations.md)."""
        build = GaugeMetricFamily(
            "sharecoord_build_info", "Version of this process.", labels=["version"]
        )
        build.add_metric([__version__], 1)
        yield build
        yield CounterMetricFamily(
            "sharecoord_log_lines_dropped",
            "Lines of the log that could not be written.",
            value=self._board.dropped_lines(),
        )
        snapshot = self._board.latest
        if snapshot is None:
            return
        yield CounterMetricFamily(
            "sharecoord_commits", "Group commits to the store.", value=snapshot.commits
        )
        yield GaugeMetricFamily(
            "sharecoord_cache_bytes", "Record payloads in memory.", value=snapshot.cache_bytes
        )
        yield from _by_group(snapshot.groups)
        yield from _loops(snapshot)
        exports = GaugeMetricFamily(
            "sharecoord_offsets_export_ok",
            "1 = share.offsets.export.group is written, 0 = not, for this reason.",
            labels=["group", "export_group", "reason"],
        )
        for each in snapshot.exports:
            exports.add_metric([*each], not each.reason)
        yield exports
        if snapshot.memory is not None:
            yield from _memory(snapshot.memory)
        if snapshot.events is not None:
            yield from _events(snapshot.events)
        if snapshot.producers is not None:
            yield from _producers(snapshot.producers)
        if snapshot.audit is not None:
            yield from _audit(snapshot.audit)
        yield from _files(snapshot)
        yield from _principals(snapshot.principals)
        if snapshot.kafka_port is not None:
            yield from _kafka_port(snapshot.kafka_port)
        if snapshot.peer_links_refused is not None:
            yield CounterMetricFamily(
                "sharecoord_peer_links_refused",
                "Links that were refused because nobody proved to be a coordinator of the fleet.",
                value=snapshot.peer_links_refused,
            )
        yield from _by_place(snapshot.partitions)


_PLACE_GAUGES = {
    "acquired": ("sharecoord_acquired_records", "Records under a lock."),
    "due": ("sharecoord_due_records", "Records to be delivered again."),
    "delayed": ("sharecoord_delayed_records", "Records that wait for their time."),
    "blocked": ("sharecoord_parked_records", "Records that wait because their key is blocked."),
    "lag": ("sharecoord_lag_records", "Records behind the log end."),
    "window_ranges": ("sharecoord_window_ranges", "Ranges in memory."),
    "held_back": ("sharecoord_held_back", "1 = not read because of memory.limit."),
    "dead_letters_waiting": (
        "sharecoord_dead_letters_waiting_records",
        "Dead letters that are not in their topic yet.",
    ),
    "dead_letters_failing": (
        "sharecoord_dead_letters_failing",
        "1 = the dead-letter topic takes none at the moment.",
    ),
    "refused": (
        "sharecoord_changes_refused",
        "1 = the store refuses what the share-partition is to write; it waits, and is tried again.",
    ),
    "paused": ("sharecoord_paused", "1 = nothing is handed out of it, by a pause."),
}
_PLACE_COUNTERS = {
    "delivered": ("sharecoord_delivered_records", "Records sent to members."),
    "delivered_whole": (
        "sharecoord_delivered_whole_records",
        "Of the records sent to members: those in whole record batches, not as columns.",
    ),
    "settled": (
        "sharecoord_settled_records",
        "Records whose lock a member's acknowledgement ended.",
    ),
    "dead_letters": ("sharecoord_dead_letters", "Records sent to the dead-letter topic."),
    "payloads_not_kept": (
        "sharecoord_payloads_not_kept",
        "Records that came to wait and whose payload was to be stored, and is not.",
    ),
}


def _by_place(partitions: Iterable[PartitionFigures]) -> Iterable[Metric]:
    """Metrics with a figure for each share-partition; none where a figure is not known."""
    labels = ["group", "topic", "partition"]
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        **{name: GaugeMetricFamily(*said, labels=labels) for name, said in _PLACE_GAUGES.items()},
        **{n: CounterMetricFamily(*said, labels=labels) for n, said in _PLACE_COUNTERS.items()},
    }
    for figures in partitions:
        place = [figures.group, figures.topic, str(figures.partition)]
        for name, family in families.items():
            value = getattr(figures, name)
            if value is not None:
                family.add_metric(place, value)
    return families.values()


_GROUP_GAUGES = {
    "members": ("sharecoord_members", "Members of the group."),
    "fairness": (
        "sharecoord_fairness_jain_ratio",
        "Jain's index of the last second over what members got against their fair part.",
    ),
    "outbox_bytes": (
        "sharecoord_dead_letters_waiting_bytes",
        "Dead letters that are not in their topic yet.",
    ),
    "outbox_full": (
        "sharecoord_dead_letters_full",
        "1 = so many dead letters wait that the group acquires nothing more.",
    ),
    "kept_bytes": ("sharecoord_kept_payload_bytes", "Stored payloads of records that wait."),
    "paused": (
        "sharecoord_group_paused",
        "1 = the whole group is paused, by an operator or by its flood breaker.",
    ),
    "flood": (
        "sharecoord_flood_breaker_open",
        "1 = paused because too many records became dead letters.",
    ),
    "members_paused": (
        "sharecoord_members_paused",
        "Members that get nothing new because they are paused.",
    ),
    "blocked_keys": (
        "sharecoord_blocked_keys",
        "Keys of which nothing is handed out, in groups that keep order by key.",
    ),
}


def _by_group(groups: Iterable[GroupFigures]) -> Iterable[Metric]:
    """One metric of each kind per share group; none where the group has no such figure."""
    for name, said in _GROUP_GAUGES.items():
        family = GaugeMetricFamily(*said, labels=["group"])
        for figures in groups:
            value = getattr(figures, name)
            if value is not None:
                family.add_metric([figures.group], value)
        yield family
    unused = GaugeMetricFamily(
        "sharecoord_group_settings_not_in_force",
        "1 = this stored setting of the group can not be used; `configs --describe` says why.",
        labels=["group", "setting"],
    )
    for figures in groups:
        for setting in figures.unused_settings:
            unused.add_metric([figures.group, setting], 1)
    yield unused


def _loops(snapshot: Snapshot) -> Iterable[Metric]:
    """Metrics of the loops that must never end: whether one is down, and how often it restarted."""
    down = GaugeMetricFamily(
        "sharecoord_loop_down",
        "1 = this loop of the coordinator failed and does not run yet; the log has the traceback.",
        labels=["loop"],
    )
    restarts = CounterMetricFamily(
        "sharecoord_loop_restarts",
        "How often a loop of the coordinator began again after an error.",
        labels=["loop"],
    )
    for name, is_down in snapshot.loops_down.items():
        down.add_metric([name], is_down)
        restarts.add_metric([name], snapshot.loop_restarts[name])
    return down, restarts


def _memory(figures: MemoryFigures) -> Iterable[Metric]:
    """Metrics of the memory that memory.limit counts, by part, and how near the limit is."""
    used = GaugeMetricFamily("sharecoord_memory_bytes", "Memory by part.", labels=["part"])
    for part in ("caches", "ranges", "key_tables", "pending", "send_buffers"):
        used.add_metric([part], getattr(figures, part))
    yield used
    yield GaugeMetricFamily(
        "sharecoord_memory_limit_bytes", "memory.limit.", value=figures.limit_bytes
    )
    yield GaugeMetricFamily(
        "sharecoord_memory_level",
        "For groups above their part: 0 open, 1 the largest do not read, 2 nothing is acquired.",
        value=[*MemoryLevel].index(figures.level),
    )


def _events(figures: EventFigures) -> Iterable[Metric]:
    """Metrics of the rows of the event log."""
    yield CounterMetricFamily(
        "sharecoord_events_written_rows",
        "Rows of the event log that its writer has taken.",
        value=figures.written,
    )
    yield CounterMetricFamily(
        "sharecoord_events_lost_rows",
        "Rows of the event log that were dropped: the writer was too slow, gone, or had no room.",
        value=figures.lost,
    )
    yield GaugeMetricFamily(
        "sharecoord_events_waiting_bytes",
        "Events that wait for the writer.",
        value=figures.waiting_bytes,
    )


def _producers(figures: ProducerFigures) -> Iterable[Metric]:
    """Metrics of the process that produces dead letters and exports offsets."""
    yield GaugeMetricFamily(
        "sharecoord_producers_running",
        "1 = the process of producers runs, 0 = nobody needs it, or it ended.",
        value=figures.is_running,
    )
    yield GaugeMetricFamily(
        "sharecoord_producers_down",
        "1 = the process of producers is needed and ends, or can not be started; the log says why.",
        value=figures.is_down,
    )
    yield CounterMetricFamily(
        "sharecoord_producers_restarts",
        "How often the process of producers ended by itself or could not be started.",
        value=figures.restarts,
    )
    yield GaugeMetricFamily(
        "sharecoord_producers_waiting_bytes",
        "Dead letters and calls that the process of producers has not taken yet.",
        value=figures.waiting_bytes,
    )


def _audit(figures: AuditFigures) -> Iterable[Metric]:
    """Metrics of the audit trail."""
    yield CounterMetricFamily(
        "sharecoord_audit_lines_written",
        "Lines of the audit trail that its sink has taken.",
        value=figures.written,
    )
    yield CounterMetricFamily(
        "sharecoord_audit_lines_dropped",
        "Entries of the audit trail that were lost: too many waited, or the sink refused them.",
        value=figures.dropped,
    )
    yield GaugeMetricFamily(
        "sharecoord_audit_failing",
        "1 = the audit trail's sink takes nothing at the moment.",
        value=figures.is_failing,
    )


def _kafka_port(figures: ConnectionFigures) -> Iterable[Metric]:
    """Metrics of the connections of the Kafka port."""
    yield GaugeMetricFamily(
        "sharecoord_kafka_port_connections",
        "Connections that are open at the Kafka port, those of silent strangers among them.",
        value=figures.open,
    )
    yield CounterMetricFamily(
        "sharecoord_kafka_port_connections_refused",
        "Connections that were refused because there were as many as there may be.",
        value=figures.refused,
    )


def _files(snapshot: Snapshot) -> Iterable[Metric]:
    """Metrics of the files that are read again when they change, and of certificates."""
    refused = GaugeMetricFamily(
        "sharecoord_file_refused",
        "1 = the changed file can not be used, its former content is in force; the log says why.",
        labels=["settings"],
    )
    for settings, is_refused in snapshot.files_refused.items():
        refused.add_metric([settings], is_refused)
    days = GaugeMetricFamily(
        "sharecoord_certificate_days_left",
        "How many days the certificate is good for; negative = it has ended.",
        labels=["setting"],
    )
    for setting, left in snapshot.certificate_days.items():
        days.add_metric([setting], left)
    return refused, days


def _principals(uses: Mapping[str, Use]) -> Iterable[Metric]:
    """Metrics of principals with quotas: what they use here, and how often that was refused."""
    members = GaugeMetricFamily(
        "sharecoord_principal_members",
        "Members of a principal that has a quota, or was refused something.",
        labels=["principal"],
    )
    streams = GaugeMetricFamily(
        "sharecoord_principal_streams",
        "Open streams of a principal that has a quota, or was refused something.",
        labels=["principal"],
    )
    refused = CounterMetricFamily(
        "sharecoord_principal_refused",
        "How often a principal was refused what its quota does not allow.",
        labels=["principal"],
    )
    for name, use in uses.items():
        members.add_metric([name], use.members)
        streams.add_metric([name], use.streams)
        refused.add_metric([name], use.refused)
    return members, streams, refused


def metrics_token(path: str) -> WatchedFiles[bytes] | None:
    """The token that `/metrics` asks for; None = no file is named, and it asks for none.

    Raises:
        InvalidConfigError: The file can not be read, or is no token.
    """
    return WatchedFiles({TOKEN_FILE: path}, _token_of) if path else None


def _token_of(contents: Mapping[str, bytes]) -> bytes:
    token = contents[TOKEN_FILE].strip()
    if not _TOKEN.fullmatch(token):
        raise InvalidConfigError(
            f"{TOKEN_FILE}: the file must have one token of 16 to 1024 ASCII characters without "
            "blanks in it, such as openssl rand -hex 32 makes"
        )
    return token


def make_app(board: StatusBoard, token: WatchedFiles[bytes] | None = None) -> Starlette:
    """The HTTP application: probes of liveness and readiness, and metrics, which may need a token.

    Args:
        board: What is told.
        token: Of `metrics_token`.
    """
    registry = prometheus_client.CollectorRegistry()
    registry.register(BoardCollector(board))
    prometheus_client.ProcessCollector(registry=registry)

    async def live(_: Request) -> Response:
        return _answer(ok=board.alive, no="the event loop does not answer")

    async def ready(_: Request) -> Response:
        why_not = board.not_ready
        return _answer(ok=not why_not, no=f"not serving: {why_not}")

    async def metrics(request: Request) -> Response:
        if token is not None and not _shows(request, token.value):
            return PlainTextResponse(
                f"metrics need the token of {TOKEN_FILE}: Authorization: Bearer TOKEN\n",
                status_code=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
        body = prometheus_client.generate_latest(registry)
        return Response(body, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/healthz/live", live),
            Route("/healthz/ready", ready),
            Route("/metrics", metrics),
        ]
    )


def _shows(request: Request, token: bytes) -> bool:
    """Whether a request brings this token; takes as long whatever it brings."""
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    is_same = hmac.compare_digest(shown.strip().encode(), token)
    return is_same and scheme.lower() == "bearer"


def _listen(host: str, port: int) -> list[socket.socket]:
    """Listens on the addresses of a host that this machine has, all with one port.

    `0.0.0.0` and `::` mean both families, as they do for gRPC: a probe comes by either.
    """
    place = None if host in ALL_INTERFACES else host
    found = socket.getaddrinfo(place, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for family, _, _, _, address in sorted(found):
        try:
            sockets.append(socket.create_server((address[0], port), family=family))
        except OSError:
            if not sockets:
                raise
        port = port or sockets[0].getsockname()[1]
    return sockets


def _answer(*, ok: bool, no: str) -> Response:
    return PlainTextResponse("ok\n" if ok else f"{no}\n", status_code=200 if ok else 503)


class ManagementServer:
    """Serves health and metrics in a thread of its own."""

    def __init__(
        self,
        board: StatusBoard,
        *,
        host: str,
        port: int,
        or_any: bool = False,
        tls: WatchedFiles[ServerTls] | None = None,
        token: WatchedFiles[bytes] | None = None,
    ) -> None:
        """Does not listen yet.

        Args:
            board: What is told.
            host: Where to listen.
            port: Where to listen; 0 = any free one.
            or_any: When the port is taken, any free one is used.
            tls: Of `security.key_pairs.management_tls`; None = clear text.
            token: Of `metrics_token`; None = metrics are for everybody who connects.
        """
        self._host, self._port, self._or_any = host, port, or_any
        self.watched: list[Watched] = [files for files in (tls, token) if files is not None]
        """Files that are to be looked at again and again."""
        config = uvicorn.Config(
            make_app(board, token),
            log_config=None,
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http="h11",
            ws="none",
        )
        # Its own settings for TLS would read the files once.
        config.load()
        config.ssl = None if tls is None else PresentContext(tls)
        self._server = uvicorn.Server(config)
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._server.serve(self._sockets)),
            name="sharecoord-management",
            daemon=True,
        )

    def start(self) -> int:
        """Starts; returns the port.

        Raises:
            InvalidConfigError: The address can not be had.
        """
        try:
            self._sockets = self._listen()
        except OSError as error:
            raise InvalidConfigError(
                f"management.host and management.port: can not listen on {self._host}:"
                f"{self._port}: {error.strerror or error}. Choose another management.port "
                "(0 = any free one), or stop the process that has it"
            ) from error
        self._thread.start()
        port: int = self._sockets[0].getsockname()[1]
        return port

    def _listen(self) -> list[socket.socket]:
        try:
            return _listen(self._host, self._port)
        except OSError as error:
            if not self._or_any or error.errno != errno.EADDRINUSE:
                raise
        sockets = _listen(self._host, 0)
        port = sockets[0].getsockname()[1]
        log.warning("management.port is taken: another one", taken=self._port, port=port)
        return sockets

    def stop(self) -> None:
        """Stops and waits."""
        self._server.should_exit = True
        self._thread.join(STOP_TIMEOUT_S)
