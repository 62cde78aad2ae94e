"""A Unix socket has the mode of listen.socket.mode, never a wider one; reflection is a switch."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from sharecoord.api import sockets
from sharecoord.api.grpc.server import bind, make_server
from sharecoord.config.endpoints import UnixAddress
from sharecoord.errors import InvalidConfigError
from tests.access import access_of
from tests.unit.runtime.worlds import world_with

MODES = [0o600, 0o660, 0o666]


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    """A mask of new files, as an operator may have set it."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@asynccontextmanager
async def serving(path: Path, mode: int) -> AsyncIterator[str]:
    coordinator = world_with(0).build("one")
    server, _ = make_server(
        coordinator, access_of(coordinator), request_bytes_max=1 << 20, shares_port=False
    )
    bound = bind(server, UnixAddress(str(path)), None, socket_mode=mode)
    await server.start()
    try:
        yield str(bound)
    finally:
        await server.stop(None)


def mode_of(path: Path) -> int:
    found = path.stat().st_mode
    assert stat.S_ISSOCK(found)
    return stat.S_IMODE(found)


async def answers(address: str) -> bool:
    channel: Any
    async with grpc.aio.insecure_channel(address) as channel:
        answer = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    return bool(health_pb2.HealthCheckResponse.FromString(answer).status)


@pytest.mark.parametrize("mode", MODES, ids=oct)
async def test_the_file_has_exactly_the_mode(tmp_path: Path, mask: int, mode: int) -> None:
    path = tmp_path / "s"
    async with serving(path, mode) as address:
        assert mode_of(path) == mode
        assert os.umask(mask) == mask, "the process's own mask is as before"
        assert await answers(address)


@pytest.mark.usefixtures("mask")
async def test_an_old_file_does_not_lend_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))
    path.chmod(0o666)
    async with serving(path, 0o600) as address:
        assert mode_of(path) == 0o600
        assert await answers(address)


@pytest.mark.usefixtures("mask")
async def test_the_file_is_closed_to_others_until_it_has_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    modes: list[int] = []

    class Told(type(path)):  # type: ignore[misc]
        def chmod(self, mode: int, **more: Any) -> None:
            modes.append(mode_of(path))
            super().chmod(mode, **more)

    monkeypatch.setattr(sockets, "Path", Told)
    async with serving(path, 0o666):
        assert [mode & 0o077 for mode in modes] == [0]


async def test_a_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    path.chmod(0o640)
    with pytest.raises(InvalidConfigError, match=r"listen\.address"):
        async with serving(path, 0o600):
            pass
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("mine", 0o640)


@pytest.mark.parametrize("reflection", [True, False])
async def test_reflection_is_a_switch(tmp_path: Path, *, reflection: bool) -> None:
    coordinator = world_with(0).build("one")
    server, _ = make_server(
        coordinator,
        access_of(coordinator),
        request_bytes_max=1 << 20,
        shares_port=False,
        reflection=reflection,
    )
    address = bind(server, UnixAddress(str(tmp_path / "s")), None)
    await server.start()
    channel: Any
    async with grpc.aio.insecure_channel(str(address)) as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )()
        await call.done_writing()
        code = await call.code()
    await server.stop(None)
    assert code is (grpc.StatusCode.OK if reflection else grpc.StatusCode.UNIMPLEMENTED)
