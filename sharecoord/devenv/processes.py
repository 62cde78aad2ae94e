"""Child processes that can not outlive this one, and loopback ports for them.

Linux' PR_SET_PDEATHSIG does not tie a child to its parent well: it fires when the *thread* that
started the child ends, and setting it between fork and exec runs Python code in a forked child of a
threaded process. Two pipes do the same, everywhere:

* The child starts as a shell that waits for a line on a pipe and then becomes the program (same
  process id). If we die before we send the line, the pipe closes and the shell ends.
* Before the line is sent, a watcher is started: a shell that waits on a second pipe. It ends at
  the word `done`; when the pipe closes without it, because this process is gone for whatever
  reason, kill -9 included, it kills the child's whole process group and deletes the child's
  scratch directory.

The pipes are not inherited by programs that this process starts. A fork without exec does inherit
them: then the child lives until that fork is gone as well.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from sharecoord.devenv.errors import DevenvError

LOOPBACK = "127.0.0.1"
LOG_TAIL_LINES = 40
POLL_S = 0.02

_GATE = 'read -r go && exec "$@" </dev/null'
# The pause lets the killed group write its last before its files go.
_WATCHER = (
    'read -r word; [ "$word" = done ] && exit; kill -s KILL -- "-$1"; '
    '[ -z "$2" ] || { sleep 1; rm -rf -- "$2"; }'
)
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 15000
_running: set[GuardedProcess] = set()
_given_ports: set[int] = set()


class GuardedProcess:
    """A program in a session of its own, whose output goes to a file and which dies with us.

    A program that has ended can be started again; the log is appended to.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log_path: Path,
        env: Mapping[str, str] | None = None,
        scratch: Path | None = None,
    ) -> None:
        """Describes the process; nothing is started.

        Args:
            name: Subject of error messages.
            argv: Program and arguments.
            log_path: File that takes standard output and standard error.
            env: The whole environment; None passes on ours.
            scratch: A directory that is deleted when this process has died without stopping the
                program, and only then.
        """
        self.name = name
        self.argv = tuple(argv)
        self.log_path = log_path
        self._env = None if env is None else dict(env)
        self._scratch = "" if scratch is None else str(scratch)
        self._child: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._parent_pid = 0

    @property
    def pid(self) -> int:
        """Process id of the program; DevenvError when it was never started or has been stopped."""
        if self._child is None:
            raise DevenvError(f"{self.name} is not running: call start() first")
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of a program that ended by itself (negative: the signal), else None."""
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Starts the program; DevenvError when it runs already or can not be started."""
        if self.alive:
            raise DevenvError(f"{self.name} is running already (pid {self.pid})")
        self._forget()
        try:
            with self.log_path.open("ab") as log:
                child = self._spawn(["/bin/sh", "-c", _GATE, self.name, *self.argv], log.fileno())
        except OSError as error:
            raise DevenvError(f"{self.name} could not be started: {error}") from error
        self._child = child
        self._parent_pid = os.getpid()
        _running.add(self)
        try:
            watcher = ["/bin/sh", "-c", _WATCHER, f"{self.name}-watcher"]
            self._watcher = self._spawn(
                [*watcher, str(child.pid), self._scratch], subprocess.DEVNULL
            )
        except OSError as error:
            self.kill()
            raise DevenvError(f"{self.name} could not be guarded: {error}") from error
        _tell(child, b"go\n")

    def signal(self, signum: signal.Signals) -> None:
        """Sends a signal to the program; nothing happens when it has ended."""
        if self.alive:
            os.kill(self.pid, signum)

    def stop(self, grace_s: float) -> None:
        """SIGTERM, and kill -9 when the program still runs after `grace_s` seconds."""
        self.signal(signal.SIGTERM)
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(grace_s)
        self.kill()

    def kill(self) -> None:
        """Kills the whole process group with kill -9 and waits until the program is gone."""
        if self._child is not None:
            # The group outlives its leader when the program left children behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._forget()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines of the log, or a note that there is none."""
        if not self.log_path.is_file():
            return "(no log)"
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"

    def wait_until(self, ready: Callable[[], bool], deadline_s: float) -> None:
        """Waits until the program is ready, up to `deadline_s` on the monotonic clock.

        DevenvError, with the end of the log, when the program ended or it is too late.
        """
        while not ready():
            if self.exit_code is not None:
                raise self.failed(f"ended with exit code {self.exit_code}")
            if time.monotonic() > deadline_s:
                raise self.failed("was not ready in time")
            time.sleep(POLL_S)

    def failed(self, what: str) -> DevenvError:
        """The error that says what the program did, and quotes the end of its log."""
        tail = self.log_tail()
        return DevenvError(f"{self.name} {what}; the end of {self.log_path}:\n{tail}")

    def stop_at_exit(self) -> None:
        """Kills the program, except in a fork, where the program is the parent's."""
        if self._parent_pid == os.getpid():
            self.kill()

    def _spawn(self, argv: Sequence[str], output: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=self._env,
            start_new_session=True,
        )

    def _forget(self) -> None:
        """Dismisses the watcher and closes the pipes of a child that has ended."""
        if self._watcher is not None:
            _tell(self._watcher, b"done\n")
            self._watcher.wait()
            self._watcher = None
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
        self._child = None
        _running.discard(self)


class Server(abc.ABC):
    """A server in a process of its own, which a `with` block starts and closes.

    Not for use by two threads at a time.
    """

    name: str
    """Subject of error messages."""
    _process: GuardedProcess | None = None

    @property
    def pid(self) -> int:
        """Process id of the server; DevenvError when it does not run."""
        if self._process is None:
            raise DevenvError(f"{self.name} is not running: call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.alive

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the server and waits until it answers.

        Raises:
            DevenvError: It runs already, a program is missing, or it ended or did not answer in
                time; then the message quotes the end of its log.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the server and deletes what it wrote."""

    def kill(self) -> None:
        """Ends the server with kill -9, as a crash does."""
        if self._process is not None:
            self._process.kill()


def running() -> list[GuardedProcess]:
    """The guarded processes of this process that were started and not stopped."""
    return sorted(_running, key=lambda process: process.name)


def free_ports(count: int) -> list[int]:
    """Distinct loopback TCP ports that nobody listens on, below the kernel's ephemeral range.

    A port from the ephemeral range (what binding port 0 gives) can not be kept over a restart: a
    client that retries its connection while the broker is down is in time given that very port as
    its own source port, connects to itself, and the broker can not bind it any more.

    A port is given once in the life of this process: who got it may not listen on it yet.
    """
    return [free_run(1) for _ in range(count)]


def free_run(count: int) -> int:
    """The first of so many such ports, one behind the other."""
    chooser = random.SystemRandom()  # not the seeded generator: tests reseed it
    while True:
        first = chooser.choice(range(_LOWEST_PORT, _ephemeral_start() - count + 1))
        ports = range(first, first + count)
        if not _given_ports.isdisjoint(ports):
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in ports:
                stack.enter_context(socket.socket()).bind((LOOPBACK, port))
            _given_ports.update(ports)
            return first


def port_open(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0):
            return True
    except OSError:
        return False


def _ephemeral_start() -> int:
    """First port of the kernel's ephemeral range; 32768 where it can not be read or is too low."""
    try:
        start = int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32768
    return start if start > _LOWEST_PORT + 1000 else 32768


def _tell(process: subprocess.Popen[bytes], line: bytes) -> None:
    """Sends one line to a shell that waits for it; a shell that has ended needs none."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line)
        process.stdin.close()


@atexit.register
def _stop_all() -> None:
    for process in running():
        process.stop_at_exit()
