"""Checks whether an address can be listened at, and makes socket files for whom they are meant."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharecoord.config.endpoints import ListenAddress, TcpAddress, UnixAddress
from sharecoord.errors import InvalidConfigError


def check_free(address: ListenAddress, setting: str = "listen.address") -> None:
    """Refuses an address that is not free; gRPC would only log it, and take a socket file over.

    Args:
        address: Where to listen.
        setting: Name of the setting that says so.

    Raises:
        InvalidConfigError: The address can not be had.
    """
    problem = _unix_problem(address) if isinstance(address, UnixAddress) else _tcp_problem(address)
    if problem:
        raise InvalidConfigError(
            f"{setting}: can not listen on {address}: {problem}. Choose another address "
            "(port 0 = any free one), or stop the process that has it"
        )


def _unix_problem(address: UnixAddress) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            served = Path(address.path).exists() and probe.connect_ex(address.path) == 0
        except OSError as error:
            return error.strerror or str(error)
    return "another process serves there" if served else ""


def _tcp_problem(address: TcpAddress) -> str:
    """The problem with an address; "" = one of the host's addresses is free, and none is taken."""
    problems: list[OSError] = []
    try:
        places = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        return error.strerror or str(error)
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError as error:
            problems.append(error)
    taken = [error for error in problems if error.errno == errno.EADDRINUSE]
    if taken or len(problems) == len(places):
        worst = (taken or problems)[0]
        return worst.strerror or str(worst)
    return ""


@contextmanager
def closed_to_others(address: UnixAddress, mode: int) -> Iterator[None]:
    """Gives the socket file that is made inside its mode; until then nobody else can connect.

    The mask of new files is the whole process's. Files that other threads make inside are therefore
    closed to others as well, and folders can still be used by this process.
    """
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)
    Path(address.path).chmod(mode)
