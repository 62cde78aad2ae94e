"""Blocked keys of a group: the calls, and how both clients make them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sharecoord_sdk._proto import admin_service_pb2 as pb

from .calls import Call
from .filled import filled

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key of which a group hands out nothing.

    Attributes:
        since_ms: When it was blocked, milliseconds since the epoch.
        waiting_records: Records of it that wait, as far as the group has read its topics.
    """

    key: bytes
    since_ms: int
    reason: str = ""
    waiting_records: int = 0


def block_keys(group_id: str, keys: Iterable[bytes | str], reason: str) -> Call[None]:
    """BlockKeys."""
    request = filled(pb.BlockKeysRequest, group_id=group_id, keys=_keys(keys), reason=reason)

    def read(answer: pb.BlockKeysResponse) -> None:
        del answer  # it has no fields

    return Call("BlockKeys", request, read)


def unblock_keys(group_id: str, keys: Iterable[bytes | str]) -> Call[list[bytes]]:
    """UnblockKeys."""

    def read(answer: pb.UnblockKeysResponse) -> list[bytes]:
        return list(answer.not_blocked)

    return Call(
        "UnblockKeys", filled(pb.UnblockKeysRequest, group_id=group_id, keys=_keys(keys)), read
    )


def list_blocked_keys(group_id: str) -> Call[list[BlockedKey]]:
    """ListBlockedKeys."""

    def read(answer: pb.ListBlockedKeysResponse) -> list[BlockedKey]:
        return [BlockedKey(k.key, k.since_ms, k.reason, k.waiting_records) for k in answer.keys]

    request = filled(pb.ListBlockedKeysRequest, group_id=group_id)
    return Call("ListBlockedKeys", request, read, is_safe=True)


def _keys(keys: Iterable[bytes | str]) -> list[bytes]:
    if isinstance(keys, (bytes, str)):
        raise TypeError(f"keys is one {type(keys).__name__}; give a list of them")
    return [key.encode() if isinstance(key, str) else bytes(key) for key in keys]


class Runner(Protocol):
    """Who sends calls and waits."""

    def _run(self, call: Call[T]) -> T: ...


class AsyncRunner(Protocol):
    """The same, awaited."""

    async def _run(self, call: Call[T]) -> T: ...


class KeyCalls:
    """What `AdminClient` can do with keys."""

    def block_keys(
        self: Runner, group_id: str, keys: Iterable[bytes | str], *, reason: str = ""
    ) -> None:
        """Hands out nothing of these keys from now on; what is under a lock runs on.

        Args:
            group_id: The group; it need not exist yet, but must have `share.ordering=key`.
            keys: Keys of records; text stands for its UTF-8.
            reason: Why, for people. A key that is blocked already gets it, and keeps its time.

        Raises:
            InvalidRequestError: The group keeps no order by key, or a key is too long.
        """
        self._run(block_keys(group_id, keys, reason))

    def unblock_keys(self: Runner, group_id: str, keys: Iterable[bytes | str]) -> list[bytes]:
        """Hands out records of these keys again, in their order.

        Returns:
            Those that were not blocked.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        return self._run(unblock_keys(group_id, keys))

    def list_blocked_keys(self: Runner, group_id: str) -> list[BlockedKey]:
        """The blocked keys of a group by key, with what waits for each.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        return self._run(list_blocked_keys(group_id))


class AsyncKeyCalls:
    """The same for `AsyncAdminClient`."""

    async def block_keys(
        self: AsyncRunner, group_id: str, keys: Iterable[bytes | str], *, reason: str = ""
    ) -> None:
        """As `AdminClient.block_keys`."""
        await self._run(block_keys(group_id, keys, reason))

    async def unblock_keys(
        self: AsyncRunner, group_id: str, keys: Iterable[bytes | str]
    ) -> list[bytes]:
        """As `AdminClient.unblock_keys`."""
        return await self._run(unblock_keys(group_id, keys))

    async def list_blocked_keys(self: AsyncRunner, group_id: str) -> list[BlockedKey]:
        """As `AdminClient.list_blocked_keys`."""
        return await self._run(list_blocked_keys(group_id))
