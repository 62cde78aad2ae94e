"""Real PostgreSQL and MariaDB servers as child processes, for tests, benchmarks and the demo.

Their settings are a user's: what COMMIT says is on disk. Each test gets a *space* of its own on one
server: a schema of PostgreSQL, a database of MariaDB.

Seconds on two shared cores, from the call to the first answer: PostgreSQL 15 first start 1.5, after
kill -9 0.3; MariaDB 10.11 first start 3, after kill -9 1.
"""

from __future__ import annotations

import abc
import atexit
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.processes import LOOPBACK, GuardedProcess, Server, free_ports, port_open

USER = "sharecoord"
PASSWORD = "for-tests"
DATABASE = "sharecoord"
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 20.0
POLL_S = 0.05
MAX_CONNECTIONS = 60


class DatabaseServer(Server):
    """A database on a loopback port, with a data directory of its own.

    The server dies with this process, however that ends. Port and data are kept over `stop`,
    `kill`, `start` and `restart`; `close` (the end of the `with` block) deletes the data.
    """

    scheme: str
    system_users: tuple[str, ...]
    """When we are root, the first of these users that exists runs the server."""

    def __init__(self, *, data_dir: Path | None = None) -> None:
        """Nothing is started or written yet.

        `data_dir` gets the data, and is deleted by `close`; None makes a temporary one.
        """
        self._data_dir = data_dir
        self._port: int | None = None

    @property
    def port(self) -> int:
        """The TCP port; the same after a restart."""
        if self._port is None:
            raise DevenvError(f"{self.name} has no port yet: call start() first")
        return self._port

    @property
    def url(self) -> str:
        """The address with user, password and database."""
        return f"{self.scheme}://{USER}:{PASSWORD}@{LOOPBACK}:{self.port}/{DATABASE}"

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        if self.running:
            raise DevenvError(f"{self.name} is running already")
        deadline = time.monotonic() + START_TIMEOUT_S
        first = self._process is None
        try:
            if first:
                self._make()
            self._launch(deadline)
            if first:
                self._make_user()
        except BaseException:
            self.close() if first else self.kill()
            raise

    def stop(self) -> None:
        """Stops the server in order; clients are thrown out."""
        if self._process is not None:
            self._process.signal(self._stop_signal())
            self._process.stop(STOP_GRACE_S)

    def freeze(self) -> None:
        """Stops the server in its tracks: connections stay, answers do not come."""
        for pid in self._family():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Undoes `freeze`."""
        for pid in self._family():
            os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stops the server if it runs, and starts it on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends the server and deletes its data."""
        atexit.unregister(self.close)
        self.kill()
        if self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
        self._data_dir = None
        self._port = None
        self._process = None

    # -- bringing it up -------------------------------------------------------------------------

    @abc.abstractmethod
    def _initialise(self, data: Path) -> None:
        """Fills the data directory, which exists, is empty, and belongs to the server's user."""

    @abc.abstractmethod
    def _argv(self, directory: Path) -> list[str]:
        """The server's command line."""

    @abc.abstractmethod
    def _connect_as_admin(self) -> Any:
        """A connection that commits each statement; the driver's error when it fails."""

    @abc.abstractmethod
    def _make_user(self) -> None:
        """Makes `USER`, who may do everything, and `DATABASE`."""

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGTERM

    @property
    def _directory(self) -> Path:
        assert self._data_dir is not None
        return self._data_dir

    def _make(self) -> None:
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix=f"sharecoord-{self.scheme}-"))
        atexit.register(self.close)
        self._data_dir.mkdir(parents=True, exist_ok=True)
        data = self._data_dir / "data"
        data.mkdir(mode=0o700)
        user = self._system_user()
        if user is not None:
            for path in (self._data_dir, data):
                os.chown(path, user.pw_uid, user.pw_gid)
        self._initialise(data)
        (self._port,) = free_ports(1)
        self._process = GuardedProcess(
            self.name,
            self._as_user(self._argv(self._data_dir)),
            log_path=self._data_dir / "server.log",
            scratch=self._data_dir,
        )

    def _launch(self, deadline: float) -> None:
        assert self._process is not None
        self._process.start()
        error: Exception | None = None
        while time.monotonic() < deadline:
            if not self._process.alive:
                # What kill -9 has left is still being cleared away by the last server's children.
                time.sleep(POLL_S)
                self._process.start()
            try:
                # The cheap look first; PyMySQL also leaves a socket behind where nobody listens.
                if port_open(self.port):
                    self._connect_as_admin().close()
                    return
            except Exception as failed:  # noqa: BLE001 - not yet, whatever it is
                error = failed
            time.sleep(POLL_S)
        raise self._process.failed(f"did not answer within {START_TIMEOUT_S:.0f} s ({error})")

    def _run(self, argv: Sequence[str]) -> None:
        answer = subprocess.run(
            self._as_user(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        if answer.returncode != 0:
            said = (answer.stdout + answer.stderr).strip()
            raise DevenvError(f"{argv[0]} failed:\n{said}")

    def _as_user(self, argv: Sequence[str]) -> list[str]:
        """Servers do not run as root."""
        user = self._system_user()
        if user is None:
            return list(argv)
        ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        return [program("setpriv", [], "util-linux"), *ids, "--", *argv]

    def _system_user(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        for name in self.system_users:
            try:
                return pwd.getpwnam(name)
            except KeyError:
                continue
        raise DevenvError(f"{self.name} needs a user other than root: {self.system_users[0]}")

    def _family(self) -> list[int]:
        """The server's process and its children."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
        return [pid, *map(int, children.split())]


class PostgresServer(DatabaseServer):
    """PostgreSQL; fsync and synchronous_commit are on, its defaults."""

    name = "postgres"
    scheme = "postgresql"
    system_users = ("postgres", "nobody")

    def _initialise(self, data: Path) -> None:
        initdb = postgres_program("initdb")
        options = ["--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]
        self._run([initdb, "-D", str(data), *options, "-E", "UTF8", "--locale=C", "--no-sync"])

    def _argv(self, directory: Path) -> list[str]:
        settings = {
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": str(directory),
            "max_connections": MAX_CONNECTIONS,
            "shared_buffers": "64MB",
        }
        server = [postgres_program("postgres"), "-D", str(directory / "data")]
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [*server, "-p", str(self.port), *options]

    def _stop_signal(self) -> signal.Signals:
        return signal.SIGINT  # SIGTERM would wait for the clients

    def _connect_as_admin(self) -> Any:
        import psycopg

        return psycopg.connect(
            host=str(self._directory),
            port=self.port,
            user="postgres",
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
        )

    def _make_user(self) -> None:
        with closing(self._connect_as_admin()) as connection:
            connection.execute(f"CREATE ROLE {USER} SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
            connection.execute(f"CREATE DATABASE {DATABASE} OWNER {USER}")


class MariaDbServer(DatabaseServer):
    """MariaDB with a log that is flushed at each commit; its default character set is not ours."""

    name = "mariadbd"
    scheme = "mysql"
    system_users = ("mysql", "nobody")

    def _initialise(self, data: Path) -> None:
        install = mariadb_program("mariadb-install-db")
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        self._run([install, "--no-defaults", f"--datadir={data}", *options])

    def _argv(self, directory: Path) -> list[str]:
        return [
            mariadb_program("mariadbd"),
            "--no-defaults",
            f"--datadir={directory / 'data'}",
            f"--socket={directory / 'sock'}",
            f"--pid-file={directory / 'data' / 'pid'}",
            f"--port={self.port}",
            f"--bind-address={LOOPBACK}",
            "--skip-name-resolve",
            f"--max-connections={MAX_CONNECTIONS}",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--innodb-flush-log-at-trx-commit=1",
            "--character-set-server=latin1",
        ]

    def _connect_as_admin(self) -> Any:
        return _connect_mysql(unix_socket=str(self._directory / "sock"), user="root")

    def _make_user(self) -> None:
        with closing(self._connect_as_admin()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'")
            cursor.execute(f"GRANT ALL ON *.* TO {USER} WITH GRANT OPTION")
            cursor.execute(f"CREATE DATABASE {DATABASE}")


# -- spaces ---------------------------------------------------------------------------------------


def connect(url: str) -> Any:
    """A connection of the server's driver that commits each statement; for a URL of a store."""
    parts = urlsplit(url)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    database = parts.path.removeprefix("/")
    if is_postgres(url):
        import psycopg

        plain = "postgresql:" + url.partition(":")[2]
        return psycopg.connect(plain, autocommit=True, connect_timeout=5)
    return _connect_mysql(
        host=parts.hostname,
        port=parts.port or 3306,
        user=user,
        password=password,
        database=database or None,
    )


def _connect_mysql(**parameters: Any) -> Any:
    import pymysql  # type: ignore[import-untyped]

    connection = pymysql.connect(
        **parameters, autocommit=True, connect_timeout=5, defer_connect=True
    )
    try:
        connection.connect()
    except BaseException:
        # Cut off within the handshake it would leave its socket to the garbage collector.
        connection._force_close()
        raise
    return connection


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """Runs statements, each a transaction; returns the rows of the last one."""
    rows: list[tuple[Any, ...]] = []
    with closing(connect(url)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            rows = list(cursor.fetchall()) if cursor.description else []
    return rows


def make_space(url: str, name: str) -> str:
    """Makes an empty space on a server and returns its URL."""
    if is_postgres(url):
        execute(url, f'CREATE SCHEMA "{name}"')
        return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{name}"
    execute(url, f"CREATE DATABASE `{name}`")
    location, question, query = url.partition("?")
    return f"{location.rpartition('/')[0]}/{name}{question}{query}"


def drop_space(url: str, name: str) -> None:
    """Deletes a space with everything in it; `url` is the server's."""
    if is_postgres(url):
        execute(url, f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
    else:
        execute(url, f"DROP DATABASE IF EXISTS `{name}`")


def is_postgres(url: str) -> bool:
    """Whether a URL names a PostgreSQL server."""
    return url.startswith("postgres")


# -- programs -------------------------------------------------------------------------------------


def postgres_program(name: str) -> str:
    """A program of PostgreSQL; Debian keeps them off the path, the newest one is taken."""
    places = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    return program(name, places[::-1], "postgresql")


def mariadb_program(name: str) -> str:
    """A program of MariaDB; /usr/sbin is not on everybody's path."""
    return program(
        name,
        [Path("/usr/sbin"), Path("/usr/local/sbin")],
        "mariadb-server-core mariadb-client-core",
    )


def program(name: str, places: Sequence[Path], package: str) -> str:
    """The path of a program; DevenvError, with the line that installs it, when it is missing."""
    found = shutil.which(name) or next(
        (str(place / name) for place in places if (place / name).is_file()), None
    )
    if found is None:
        raise DevenvError(f"{name} is missing: sudo apt-get install -y {package}")
    return found
