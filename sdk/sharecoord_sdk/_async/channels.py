"""Channels that the consumers of one event loop share, counted by their users."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass

from grpc import aio

from sharecoord_sdk._core.config import TlsConfig
from sharecoord_sdk._grpc import open_aio_channel

_Key = tuple[str, TlsConfig | None]


@dataclass(slots=True)
class _Shared:
    channel: aio.Channel
    users: int


_BY_LOOP: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, _Shared]] = (
    weakref.WeakKeyDictionary()
)


class ChannelLease:
    """One user's hold on a shared channel. Use in the loop that took it only."""

    def __init__(self, address: str, tls: TlsConfig | None) -> None:
        loop = asyncio.get_running_loop()
        self._shared_by_key = _BY_LOOP.setdefault(loop, {})
        self._key = (address, tls)
        shared = self._shared_by_key.get(self._key)
        if shared is None:
            shared = _Shared(open_aio_channel(address, tls), 0)
            self._shared_by_key[self._key] = shared
        shared.users += 1
        self._shared: _Shared | None = shared

    @property
    def channel(self) -> aio.Channel:
        """The channel, until `release`."""
        assert self._shared is not None, "a released lease has no channel"
        return self._shared.channel

    async def release(self) -> None:
        """Gives the channel up; the last user closes it. A second call does nothing."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if shared.users == 0:
            del self._shared_by_key[self._key]
            await shared.channel.close(None)
