"""A TCP proxy between a store and its server that cuts and stalls where a test says."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import Self
from urllib.parse import urlsplit

CHUNK = 1 << 16


class Proxy:
    """Forwards every connection to one server; the `with` block ends it.

    Attributes:
        cuts: How many connections were cut because of `cut_at`.
    """

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = re.sub(r"@[^/@]*/", f"@127.0.0.1:{port}/", server_url, count=1)
        self._open = threading.Event()
        self._open.set()
        self._word = b""
        self._answered = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.cuts = 0

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()
        # Wakes the thread that accepts; closing alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads[1:]:
            thread.join()
        for each in self._sockets:
            each.close()

    def cut_at(self, word: bytes, *, answered: bool) -> None:
        """Cuts the connection that next sends `word`.

        With `answered` the server gets it, and the cut comes in the place of its answer; without,
        the server does not get it.
        """
        self._word, self._answered = word, answered

    def stall(self) -> None:
        """Forwards nothing, in both directions; connections stay, and new ones are accepted."""
        self._open.clear()

    def go_on(self) -> None:
        """Undoes `stall`."""
        self._open.set()

    def cut(self) -> None:
        """Cuts every connection."""
        for each in self._sockets:
            _shut(each)

    def _start(self, work: object, *values: object) -> None:
        thread = threading.Thread(target=work, args=values, name="proxy")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except ConnectionRefusedError:
                client.close()  # the server is down, so is the proxy
                continue
            except OSError:
                return
            self._sockets += [client, server]
            cut_answer = threading.Event()
            self._start(self._forward, client, server, cut_answer, True)
            self._start(self._forward, server, client, cut_answer, False)

    def _forward(
        self,
        source: socket.socket,
        target: socket.socket,
        cut_answer: threading.Event,
        to_server: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._open.wait()
                if to_server and self._word and self._word in data:
                    self._word = b""
                    self.cuts += 1
                    if not self._answered:
                        break
                    cut_answer.set()
                elif not to_server and cut_answer.is_set():
                    break
                target.sendall(data)
        _shut(source)
        _shut(target)


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
