"""The composition root: the only place that names concrete classes."""

from __future__ import annotations

import asyncio
import gc
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from sharecoord import __version__
from sharecoord.api.grpc.access import Access
from sharecoord.api.grpc.admin_service import AdminService
from sharecoord.api.grpc.peer_door import PeerDoor
from sharecoord.api.grpc.peer_service import PeerService
from sharecoord.api.grpc.server import bind, make_server, set_serving
from sharecoord.config.endpoints import (
    ALL_INTERFACES,
    EventsSinkKind,
    ListenAddress,
    TcpAddress,
    UnixAddress,
    check_listen_security,
)
from sharecoord.config.process import ProcessConfig, kafka_port_openness
from sharecoord.config.process_settings import CoordinatorConfig, LogFormat, Mode
from sharecoord.config.sources import Source
from sharecoord.core.fleet.belonging import SECRET_BYTES
from sharecoord.errors import InvalidConfigError, SharecoordError
from sharecoord.ingest.raw_reader import RawLogReader
from sharecoord.ingest.readers import make_reader, say_who_reads
from sharecoord.kafka.refusals import Refusals
from sharecoord.kafka.wire.catalog import WireCatalog
from sharecoord.kafka.wire.keys import beyond, brokers_of, reads_all
from sharecoord.management.server import ManagementServer, metrics_token
from sharecoord.observability.logs import configure_logging
from sharecoord.observability.standard_error import dropped_lines, guard_standard_error
from sharecoord.peers.links import GrpcPeerNetwork, channel_maker
from sharecoord.ports import (
    Brokers,
    EventSink,
    LogReader,
    OutgoingMessage,
    PeerNetwork,
    Store,
    TopicCatalog,
)
from sharecoord.producing.frames import ProducerSettings
from sharecoord.producing.producers import Producers
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.admin.flood_watch import FloodWatch
from sharecoord.runtime.admin.operators import Operators
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.kernel.allocator import keep_freed_memory
from sharecoord.runtime.kernel.budget import MemoryBudget, MemoryLimits
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.kernel.committer import CommitLimits, Committer
from sharecoord.runtime.kernel.context import Context, Limits
from sharecoord.runtime.kernel.lease import Lease
from sharecoord.runtime.kernel.open_files import FIX, OpenFiles, raise_limit
from sharecoord.runtime.kernel.precise_loop import precise_loop
from sharecoord.runtime.kernel.store_thread import StoreThread
from sharecoord.runtime.status.event_samples import EventSampler
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.security.audit import AuditLog, make_audit_log
from sharecoord.security.authenticator import socket_identity
from sharecoord.security.files import FileWatch, Watched, WatchedFiles
from sharecoord.security.key_pairs import KeyPair, days_left, listener_pair, management_tls
from sharecoord.security.principals import Caller
from sharecoord.security.setup import Security
from sharecoord.store.factory import make_store

if TYPE_CHECKING:
    # For the command line.
    from sharecoord.events.compaction import EventTools as EventTools
    from sharecoord.store.tools.tools import StoreTools as StoreTools

log = structlog.get_logger(__name__)

T = TypeVar("T")

GC_THRESHOLDS = (100_000, 20, 100)
"""Each consume makes 2,000 short-lived message objects; with Python's default of 700 the collector
walks them again and again (10% of the coordinator's time, measured)."""

SLOW_S = 1.0
"""After so long without an answer at the start the log says whose it is."""

ID_CHARS_MAX = 128
"""Most characters of a coordinator's id (coordinator.id)."""

TICK_MS = 1_000
"""How often fairness is measured, and the state that others see is renewed."""

STANDALONE_ID = "standalone"
"""A lone coordinator keeps its name over restarts, so it takes its own partitions back at once."""


class Application:
    """A coordinator process, put together."""

    def __init__(
        self,
        config: ProcessConfig,
        *,
        store: Store | None = None,
        reader: LogReader | None = None,
        catalog: TopicCatalog | None = None,
    ) -> None:
        self.config = config
        self.coordinator: Coordinator | None = None
        self.board = StatusBoard()
        self.board.dropped_lines = dropped_lines
        self.address = ""
        self.kafka_addresses: list[str] = []
        """Where members connect that speak Kafka's protocol; "" = nowhere."""
        self.management_port: int | None = None
        self.failure: asyncio.Future[None] | None = None
        self._store = store
        self._reader = reader
        self._catalog = catalog
        self._stack = AsyncExitStack()
        self._cluster_id = ""
        self._peer_secret = secrets.token_bytes(SECRET_BYTES)
        self._files: OpenFiles | None = None
        self._sampler: EventSampler | None = None
        self._pair: WatchedFiles[KeyPair] | None = None
        self._kafka_tls: Watched | None = None
        self._kafka_files: Callable[[], Mapping[str, bytes]] = dict
        """Contents of the certificates for Kafka that are in force, by librdkafka's keys."""
        self._renewals: list[Callable[[], None]] = []
        """Each lets clients of librdkafka be made anew: they read certificates once."""
        self._ends_s: list[Callable[[], Mapping[str, float]]] = []
        """Each tells when certificates end, by setting, in seconds since 1970."""
        self._security: Security | None = None

    async def start(self) -> None:
        """Opens the store, loads groups, listens.

        Raises:
            SharecoordError: What keeps it from serving, with the fix.
        """
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        config = self.config
        is_open = check_listen_security(
            config.listen.address,
            tls=config.tls.enabled,
            knows_clients=config.knows_clients,
            insecure=config.listen.insecure,
            is_fleet=config.coordinator.mode is Mode.FLEET,
        )
        for why in filter(None, (is_open, kafka_port_openness(config))):
            log.warning("the listener is open", why=why)
        # All files are read before Kafka is asked: who has made two mistakes hears of this one.
        has_port = bool(config.kafka_port.listen)
        self._pair = listener_pair(config.tls, has_context=has_port)
        management = self._management() if config.management.enable else None
        loop = asyncio.get_running_loop()
        self.failure = loop.create_future()
        context = await self._context(loop)
        fleet = Fleet(context.coordinator_id, context.clock) if context.in_fleet else None
        coordinator = self.coordinator = Coordinator(
            context, fleet, None if fleet is None else self._network(fleet)
        )
        if context.events is not None:
            self._sampler = EventSampler(
                context, coordinator.groups, interval_ms=config.events.sample_interval_ms
            )
        self._stack.push_async_callback(coordinator.close)
        await coordinator.start()
        await self._listen(coordinator)
        if self._reader is None:
            say_who_reads(config.reader.kind, config.kafka)
        context.tasks.keep("status", lambda: self._tick(coordinator))
        for name, run in self._security_parts.loops.items():
            context.tasks.keep(name, run)
        if self._sampler is not None:
            context.tasks.keep("event-samples", self._sampler.run)
        if management is not None:
            self.management_port = await asyncio.to_thread(management.start)
            self._stack.push_async_callback(asyncio.to_thread, management.stop)
            for files in management.watched:
                self._security_parts.watch.add(files)

    def _management(self) -> ManagementServer:
        """The server of health and metrics, which does not listen yet."""
        config = self.config
        tls = management_tls(config.management)
        if tls is not None:
            self._ends_s.append(lambda: tls.value.ends_s)
        return ManagementServer(
            self.board,
            host=config.management.host,
            port=config.management.port,
            or_any=config.source("management.port") is Source.DEFAULT,
            tls=tls,
            token=metrics_token(config.management.metrics_token_file),
        )

    def _network(self, fleet: Fleet) -> PeerNetwork:
        """Links to the other coordinators of a fleet."""
        channels = channel_maker(self._pair, peer_name=self.config.tls.peer_name)
        return GrpcPeerNetwork(
            fleet.coordinator_id,
            fleet.gateway,
            channels,
            secret=self._peer_secret,
            secret_of=fleet.secret_of,
        )

    async def _listen(self, coordinator: Coordinator) -> None:
        """Serves members and operators, and in a fleet the other coordinators."""
        config, fleet = self.config, coordinator.fleet
        shares_port = config.coordinator.processes > 1
        security = self._security_parts
        access = Access(
            security.authenticator,
            security.guard,
            certificates=bool(config.tls.client_ca_file),
        )
        server, statuses = make_server(
            coordinator,
            access,
            request_bytes_max=config.limits.request_max_bytes,
            shares_port=shares_port,
            reflection=config.listen.reflection,
        )
        admin = self._admin(coordinator)
        operators = Operators(admin, coordinator)
        server.add_generic_rpc_handlers((AdminService(operators, access).handlers(),))
        coordinator.context.tasks.keep("floods", FloodWatch(coordinator, admin).run)
        address = bind(
            server,
            config.listen.address,
            self._pair,
            is_shared=shares_port,
            socket_mode=config.listen.socket_mode,
        )
        self.address = str(address)
        if isinstance(address, UnixAddress):
            mode = config.listen.socket_mode
            security.authenticator.socket = socket_identity(Path(address.path), mode)
        door = peers_at = None
        if fleet is not None:
            door = self._peer_door(coordinator, fleet)
            peers_at = door.bind(config.listen.address, config.coordinator, self._pair)
        await server.start()
        drain_ms = config.coordinator.drain_timeout_ms
        self._stack.push_async_callback(server.stop, drain_ms / 1000)
        await set_serving(statuses)
        if door is not None:
            await door.start()
            self._stack.push_async_callback(door.stop)
        if config.kafka_port.listen:
            await self._serve_kafka(coordinator, operators)
        self._stack.push_async_callback(coordinator.drain, drain_ms)
        # Health says NOT_SERVING first, so that nobody new comes while members are sent away.
        self._stack.push_async_callback(statuses.enter_graceful_shutdown)
        if coordinator.watch is not None and peers_at is not None:
            own, peers = config.coordinator, str(peer_address(config.coordinator, peers_at))
            await coordinator.watch.announce(
                str(own.advertised_address or reachable(address)), peers
            )
            log.info("the other coordinators are told where this one is", address=peers)

    async def _serve_kafka(self, coordinator: Coordinator, operators: Operators) -> None:
        """Serves members that speak Kafka's protocol."""
        # Its codec takes memory: it is loaded where somebody speaks it.
        from sharecoord.api.kafka.server import KafkaPort

        port = KafkaPort(
            coordinator,
            operators,
            self._cluster_id,
            request_bytes_max=self.config.limits.request_max_bytes,
            authenticator=self._security_parts.port_authenticator,
            pair=self._pair,
            config=self.config.kafka_port,
            brokers=self._brokers(coordinator.context.reader),
        )
        self._stack.push_async_callback(port.close)
        self.board.kafka_port = lambda: port.strangers.figures
        config = self.config.kafka_port
        for address, advertised in zip_longest(config.listen, config.advertised):
            self.kafka_addresses.append(str(await port.start(address, advertised)))

    def _brokers(self, reader: LogReader) -> Brokers | None:
        """To whom the Kafka port passes on what it does not serve; None = to nobody.

        Raises:
            InvalidConfigError: Connections to them need what librdkafka alone can do.
        """
        if not self.config.kafka_port.passthrough:
            return None
        if not isinstance(reader, RawLogReader):
            beyond_us = beyond(self.config.kafka)
            because = f"kafka.{beyond_us}" if beyond_us else "kafka.reader=librdkafka"
            raise InvalidConfigError(
                f"kafka.port.passthrough=true goes over connections of the coordinator's own, and "
                f"{because} is for librdkafka alone. Remove one of the two"
            )
        from sharecoord.kafka.wire.passages import WireBrokers

        return WireBrokers(reader.cluster)

    @property
    def _security_parts(self) -> Security:
        assert self._security is not None, "made with the context"
        return self._security

    def _peer_door(self, coordinator: Coordinator, fleet: Fleet) -> PeerDoor:
        """Where the other coordinators of a fleet get in, and nobody else."""
        tell = self._security_parts.guard.tell
        service = PeerService(
            coordinator,
            fleet,
            secret=self._peer_secret,
            refused=lambda address, error: tell(Caller(address=address), "Link", error),
        )
        return PeerDoor(service, message_bytes_max=self.config.limits.request_max_bytes)

    def _admin(self, coordinator: Coordinator) -> Admin:
        """The admin calls; their reads have a thread of their own, beside the commits."""
        reads = StoreThread()
        self._stack.callback(reads.close)
        info = CoordinatorInfo(
            __version__,
            self._cluster_id,
            brokers_of(self.config.kafka),
            self.config.store.url.masked,
        )
        return Admin(coordinator, info, reads=reads)

    async def _context(self, loop: asyncio.AbstractEventLoop) -> Context:
        config = self.config
        clock = RuntimeClock(loop)
        refusals = Refusals()
        reader = self._reader or self._kafka_reader(refusals)
        self._stack.push_async_callback(reader.close)
        producers = self._producers(refusals)
        coordinator_id = id_of(config)
        audit = self._audit_log(coordinator_id, producers)
        self._security = Security(config, audit, coordinator_id)
        self._watch_files(self._security.watch)
        if isinstance(reader, RawLogReader) and not reads_all(config.kafka):
            await producers.check()
        catalog = self._catalog or self._catalog_beside(reader, refusals)
        self._stack.push_async_callback(catalog.close)
        cluster_id = self._cluster_id = await _said_when_slow(
            catalog.cluster_id(), "no answer from Kafka yet", brokers_of(config.kafka)
        )
        files = self._files = OpenFiles(raise_limit(), brokers=catalog.brokers)
        is_fleet = config.coordinator.mode is Mode.FLEET
        store = self._store or make_store(
            config.store.url.url, fleet=is_fleet, lock_timeout_ms=config.store.lock_timeout_ms
        )
        caller = StoreThread()
        opened = caller.call(
            store.open,
            coordinator_id=coordinator_id,
            cluster_id=cluster_id,
            address=str(config.listen.address),
            version=__version__,
            secret=self._peer_secret if is_fleet else b"",
        )
        await _said_when_slow(opened, "the store is not open yet", config.store.url.masked)
        clock.measured(await caller.call(store.now_ms))
        commit = config.commit
        committer = Committer(
            store,
            caller,
            now_ms=clock.now_ms,
            on_fatal=self._fail,
            limits=CommitLimits(
                commit.linger_ms, commit.oldest_uncommitted_ms, commit.pending_max_bytes
            ),
        )
        return Context(
            coordinator_id=coordinator_id,
            store=store,
            caller=caller,
            reader=reader,
            catalog=catalog,
            clock=clock,
            committer=committer,
            lease=Lease(
                store,
                StoreThread(),
                clock,
                duration_ms=config.coordinator.lease_timeout_ms,
                renewal_s=config.coordinator.lease_renew_interval_ms / 1000,
            ),
            budget=MemoryBudget(config.memory.cache_max_bytes),
            limits=_limits_of(config),
            files=files,
            new_incarnation=lambda: secrets.randbits(62) + 1,
            group_defaults=config.group_defaults,
            in_fleet=is_fleet,
            offsets_export=producers.offsets_export,
            dead_letters=producers.dead_letters,
            events=await self._event_sink(coordinator_id, clock),
            guard=self._security.guard,
        )

    def _producers(self, refusals: Refusals) -> Producers:
        """Dead letters and exported offsets; in a process of its own, which is not started yet."""
        config = self.config
        settings = ProducerSettings(
            kafka={key: str(value) for key, value in config.kafka.items()},
            files=dict(self._kafka_files()),
            transactional_producers_max=config.limits.transactional_producers_max,
            log_level=config.log.level.value,
            log_json=logs_json(config),
        )
        producers = Producers(settings, refusals)
        self.board.producers = lambda: producers.figures
        self._renewals.append(lambda: producers.renew(self._kafka_files()))
        self._stack.push_async_callback(producers.close)
        return producers

    def _audit_log(self, coordinator_id: str, producers: Producers) -> AuditLog | None:
        """The audit trail; it ends after the servers, and before the producers."""
        security = self.config.security
        # One key for all: a partition keeps their order.
        key = coordinator_id.encode()
        audit = make_audit_log(
            security.audit_sink,
            queue_max_bytes=security.audit_queue_max_bytes,
            send=lambda topic, line, done: producers.dead_letters.send(
                topic, OutgoingMessage(key, line, ()), done
            ),
        )
        if audit is not None:
            self.board.audit = lambda: audit.figures
            self._stack.push_async_callback(audit.close)
        return audit

    def _watch_files(self, watch: FileWatch) -> None:
        """Looks again and again at the files that are read again when they change."""
        self.board.file_problems = self._security_parts.problems
        pair = self._pair
        if pair is not None:
            watch.add(pair)
            self._ends_s.append(lambda: pair.value.ends_s)
        if self._kafka_tls is not None:
            watch.add(self._kafka_tls, self._renew_clients)
        self.board.certificate_days = lambda: days_left(
            {setting: end_s for told in self._ends_s for setting, end_s in told().items()}
        )

    def _renew_clients(self) -> None:
        """Lets clients of librdkafka have changed certificates."""
        for renew in self._renewals:
            renew()

    def _kafka_reader(self, refusals: Refusals) -> LogReader:
        """Reads while files may be opened; the board says when that is over."""
        config = self.config

        def may_open() -> bool:
            return self._files is None or self._files.may_read()

        reader = make_reader(config.reader.kind, config.kafka, refusals, may_open=may_open)

        def short() -> str:
            waiting = reader.waiting
            problem = "" if self._files is None else self._files.problem
            return problem or (
                f"{waiting} partitions are not read, too many files are open: {FIX}"
                if waiting
                else ""
            )

        self.board.short_of_files = short
        self._kafka_tls = reader.files
        self._kafka_files = lambda: reader.file_contents
        self._ends_s.append(lambda: reader.certificate_ends_s)
        if not isinstance(reader, RawLogReader):
            self._renewals.append(reader.renew)
        return reader

    def _catalog_beside(self, reader: LogReader, refusals: Refusals) -> TopicCatalog:
        """The catalog that asks over the reader's kind of connections."""
        if isinstance(reader, RawLogReader):
            return WireCatalog(reader.cluster, refusals)
        from sharecoord.kafka.catalog import KafkaCatalog

        catalog = KafkaCatalog(self.config.kafka, refusals)
        self._renewals.append(catalog.renew)
        return catalog

    async def _event_sink(self, coordinator_id: str, clock: RuntimeClock) -> EventSink | None:
        """Where events go; ends after everything that has some to tell."""
        config = self.config
        if config.events.sink.kind is EventsSinkKind.OFF:
            return None
        # Its process is of no use to who wants no events.
        from sharecoord.events.pipe_sink import PipeSink, settings_of

        settings = settings_of(config, coordinator_id, log_json=logs_json(config))
        sink = PipeSink(
            replace(settings, files=dict(self._kafka_files())),
            pipe_max_bytes=config.events.pipe_max_bytes,
            now_us=lambda: clock.to_store(clock.now_ms()) * 1000,
        )
        await sink.start()
        self._renewals.append(lambda: sink.renew(self._kafka_files()))
        self._stack.push_async_callback(sink.close)
        return sink

    def _fail(self, error: SharecoordError) -> None:
        """The process can not go on."""
        if self.failure is not None and not self.failure.done():
            self.failure.set_exception(error)

    async def _tick(self, coordinator: Coordinator) -> None:
        files = coordinator.context.files
        while True:
            await asyncio.to_thread(files.look)
            for group in coordinator.groups.values():
                wanted = group.dispatcher.measure()
                if self._sampler is not None:
                    self._sampler.sample_members(group, wanted, TICK_MS)
            self.board.update(coordinator)
            await asyncio.sleep(TICK_MS / 1000)

    async def stop(self) -> None:
        """Drains, commits, closes."""
        await self._stack.aclose()
        if self.failure is not None and self.failure.done():
            self.failure.exception()


def id_of(config: ProcessConfig) -> str:
    """The name of a coordinator, the same after a restart: it takes its own partitions back."""
    if config.coordinator.id:
        return config.coordinator.id
    if config.coordinator.mode is Mode.STANDALONE:
        return STANDALONE_ID
    # What is allowed in a host name is allowed in an id.
    return socket.gethostname()[:ID_CHARS_MAX] or Mode.FLEET.value


def reachable(address: ListenAddress) -> ListenAddress:
    """Where others reach who listens there: for all interfaces, this host's first address.

    Raises:
        InvalidConfigError: The host does not know its own address.
    """
    if isinstance(address, UnixAddress) or address.host not in ALL_INTERFACES:
        return address
    try:
        found = socket.getaddrinfo(socket.gethostname(), address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidConfigError(
            f"listen.address: the other coordinators can not be told where {address} is: this "
            f"host's name has no address ({error.strerror}). Set coordinator.advertised.address "
            "to the HOST:PORT at which they reach this one"
        ) from error
    return TcpAddress(str(found[0][4][0]), address.port)


def peer_address(coordinator: CoordinatorConfig, bound: TcpAddress) -> ListenAddress:
    """Where the other coordinators of a fleet reach one whose door for them is bound there.

    Raises:
        InvalidConfigError: The host does not know its own address.
    """
    if coordinator.peer_address is not None:
        return coordinator.peer_address
    advertised = coordinator.advertised_address
    if isinstance(advertised, TcpAddress) and bound.host in ALL_INTERFACES:
        return TcpAddress(advertised.host, bound.port)
    return reachable(bound)


def _limits_of(config: ProcessConfig) -> Limits:
    memory = config.memory
    return Limits(
        memory=MemoryLimits(
            memory.limit_bytes,
            memory.read_stop_ratio,
            memory.acquire_stop_ratio,
            config.limits.stream_unsent_max_bytes,
        ),
        groups_max=config.limits.groups_max,
        lock_grace_ms=config.recovery.lock_grace_ms,
    )


async def _said_when_slow(answer: Awaitable[T], what: str, address: str) -> T:
    """Waits for an answer; when it takes long, the log says whose."""
    task = asyncio.ensure_future(answer)
    if not (await asyncio.wait({task}, timeout=SLOW_S))[0]:
        log.warning(what, address=address)
    return await task


def on_hangup(stop: Callable[[], None]) -> Callable[[], None]:
    """The handler of SIGHUP: the end of a terminal ends what runs on it; else it is ignored."""
    if sys.stderr.isatty():

        def end() -> None:
            log.warning("the terminal was closed (SIGHUP): shutting down")
            stop()

        return end
    return lambda: log.warning(
        "SIGHUP ignored: settings are read at the start; start again to read them, or send SIGTERM "
        "to end. Files of certificates, tokens and rules are read again when they change"
    )


def heeds_hangup() -> bool:
    """Whether SIGHUP is for this process; `nohup` says that it is not."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


async def _serve(config: ProcessConfig, ready_file: Path | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stopping.set)
    if heeds_hangup():
        loop.add_signal_handler(signal.SIGHUP, on_hangup(stopping.set))
    application = Application(config)
    await application.start()
    assert application.failure is not None, "started"
    store = config.store.url
    print(f"sharecoord {__version__}", file=sys.stderr)  # noqa: T201
    print(f"  Kafka       {brokers_of(config.kafka)}", file=sys.stderr)  # noqa: T201
    print(f"  store       {store.masked}", file=sys.stderr)  # noqa: T201
    print(f"  workers at  {application.address}", file=sys.stderr)  # noqa: T201
    for address in application.kafka_addresses:
        print(f"  Kafka at    {address}", file=sys.stderr)  # noqa: T201
    if application.management_port is not None:
        scheme = "https" if config.management.tls_cert_file else "http"
        where = f"{scheme}://{config.management.host}:{application.management_port}"
        print(f"  health at   {where}/healthz/ready", file=sys.stderr)  # noqa: T201
    if ready_file is not None:
        write_ready_file(ready_file, application.address)
    try:
        application.failure.add_done_callback(lambda _: stopping.set())
        await stopping.wait()
        if application.failure.done():
            application.failure.result()
    finally:
        await application.stop()


def write_ready_file(path: Path, address: str) -> None:
    """Says where it serves; the file is whole as soon as it is there."""
    part = path.with_name(path.name + ".part")
    part.write_text(address + "\n", encoding="utf-8")
    part.rename(path)


def logs_json(config: ProcessConfig) -> bool:
    """Whether log lines are JSON."""
    is_auto = config.log.format is LogFormat.AUTO
    return config.log.format is LogFormat.JSON or (is_auto and not sys.stderr.isatty())


def configure_process_logging(config: ProcessConfig) -> None:
    """Logs as the settings say, without ever waiting, and what they say of themselves."""
    guard_standard_error()
    configure_logging(level=config.log.level.value, json=logs_json(config))
    for warning in config.warnings:
        log.warning("configuration", note=warning)


def serve(config: ProcessConfig, *, ready_file: Path | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code.

    Raises:
        SharecoordError: It could not start, or the store failed for good.
    """
    configure_process_logging(config)
    keep_freed_memory(config.memory.limit_bytes)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        runner.run(_serve(config, ready_file))
    return 0


def store_tools(config: ProcessConfig) -> StoreTools:
    """Makes the tools of `sharecoord store` for the configured store.

    Raises:
        InvalidConfigError: The store is of a kind that has nothing to keep.
    """
    configure_logging(level=config.log.level.value, json=config.log.format is LogFormat.JSON)
    # SQLAlchemy is loaded with it, which the coordinator leaves to the store that is named.
    from sharecoord.store.tools.tools import StoreTools

    return StoreTools(config.store.url.url, lock_timeout_ms=config.store.lock_timeout_ms)


def event_tools(root: Path) -> EventTools:
    """Makes the tools of `sharecoord events` for a folder of the event log.

    Raises:
        InvalidConfigError: pyarrow is not installed.
        InvalidRequestError: It is no such folder.
    """
    configure_logging(level="warning", json=False)
    try:
        from sharecoord.events.compaction import EventTools
    except ImportError as error:
        raise InvalidConfigError(
            f"the event log is read with pyarrow, which can not be loaded ({error}): pip install "
            "'sharecoord[events]'"
        ) from error
    return EventTools(root)
