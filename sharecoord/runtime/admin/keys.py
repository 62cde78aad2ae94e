"""Blocks, unblocks and lists keys (docs/ordering.md)."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from sharecoord.config.group import GroupConfig, Ordering
from sharecoord.core.changes import GroupRow, PartitionRow
from sharecoord.core.dispatch.pauses import OPERATOR
from sharecoord.core.limits import BLOCKED_KEY_BYTES_MAX, BLOCKED_KEYS_MAX, REASON_BYTES_MAX
from sharecoord.core.order.blocked_keys import hash_of
from sharecoord.core.states import RecordState
from sharecoord.errors import InvalidConfigError, InvalidRequestError
from sharecoord.eventlog.schema import GroupEvent
from sharecoord.ports import Store
from sharecoord.runtime.admin.group_access import PAGE_ROWS, GroupAccess
from sharecoord.runtime.group.events import tell

log = structlog.get_logger(__name__)

KEYS_SAID_MAX = 10
"""Most keys that one event names."""


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A blocked key; `BlockedKey` of admin_service.proto explains the fields."""

    key: bytes
    since_ms: int
    reason: str
    waiting_records: int


class KeyCommands(GroupAccess):
    """The commands about blocked keys."""

    async def block_keys(
        self, group_id: str, keys: Sequence[bytes], reason: str = "", *, by: str = OPERATOR
    ) -> None:
        """Hands out nothing of these keys from now on; what is under a lock runs on.

        Makes the group when it is new. A key that is blocked already keeps its time and gets the
        new reason.

        Raises:
            InvalidRequestError: No key, one that is too long, or a group without order by key.
            LimitExceededError: More keys would be blocked than may be.
        """
        _check_keys(keys)
        if len(reason.encode()) > REASON_BYTES_MAX:
            raise InvalidRequestError(
                f"reason has {len(reason.encode())} bytes; at most {REASON_BYTES_MAX}"
            )
        await self._to_the_end(self._block(group_id, dict.fromkeys(keys, reason), by))

    async def _block(self, group_id: str, blocked: Mapping[bytes, str], by: str) -> None:
        async with self._altering:
            groups, _ = await self._load()
            ordering = self._config(groups.get(group_id)).ordering
            if ordering != Ordering.KEY:
                raise InvalidRequestError(
                    f"group {group_id!r} has share.ordering={ordering}: only order by key knows "
                    "keys. Set share.ordering=key first, or release the records with a delay"
                )
            self._coordinator.groups.check_room(group_id)
            await self._save_keys(group_id, blocked, ())
            reason = next(iter(blocked.values()))
            keys = _said(list(blocked))
            said = f"{keys} by {by}: {reason}" if reason else f"{keys} by {by}"
            tell(self._context, group_id, GroupEvent.KEYS_BLOCKED, reason=said)
            log.info("keys blocked", group=group_id, keys=keys, by=by, why=reason)

    async def unblock_keys(
        self, group_id: str, keys: Sequence[bytes], *, by: str = OPERATOR
    ) -> list[bytes]:
        """Hands out records of these keys again, in their order.

        Returns the keys that were not blocked.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidRequestError: No key, or one that is too long.
        """
        _check_keys(keys)
        return await self._to_the_end(self._unblock(group_id, list(dict.fromkeys(keys)), by))

    async def _unblock(self, group_id: str, keys: Sequence[bytes], by: str) -> list[bytes]:
        async with self._altering:
            group, _ = await self._existing(group_id)
            known = {entry.key for entry in group.blocked_keys}
            found = [key for key in keys if key in known]
            if found:
                await self._save_keys(group_id, {}, found)
                said = _said(found)
                tell(self._context, group_id, GroupEvent.KEYS_UNBLOCKED, reason=f"{said} by {by}")
                log.info("keys unblocked", group=group_id, keys=said, by=by)
            return [key for key in keys if key not in known]

    async def _save_keys(
        self, group_id: str, blocked: Mapping[bytes, str], unblocked: Sequence[bytes]
    ) -> None:
        store = self._context.store
        try:
            await self._context.caller.call(
                store.save_blocked_keys, group_id, blocked=blocked, unblocked=unblocked
            )
        finally:
            # Also after an error: the stored keys are those in force.
            await self._refresh(group_id)

    async def list_blocked_keys(self, group_id: str) -> list[BlockedKey]:
        """The blocked keys of a group in order, with what waits for each.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        entries = (await self._existing(group_id))[0].blocked_keys
        hashes = {entry.key: hash_of(entry.key) for entry in entries}
        waiting: Counter[int] = Counter()
        for row in await self._rows(group_id) if entries else ():
            waiting += await self._waiting(row, frozenset(hashes.values()))
        return [
            BlockedKey(entry.key, entry.since_ms, entry.reason, waiting[hashes[entry.key]])
            for entry in entries
        ]

    async def _waiting(self, row: PartitionRow, hashes: frozenset[int]) -> Counter[int]:
        """Records that wait, by hash of their key: as the live actor knows, else the store."""
        actor = self._coordinator.groups.actor_of(row.key)
        if actor and actor.partition and actor.partition.order:
            order = actor.partition.order
            return Counter({key: order.waiting_of(key) for key in hashes})
        return await self._reads.call(
            _stored_waiting, self._context.store, row.partition_id, hashes
        )


def refuse_while_blocked(row: GroupRow | None, config: GroupConfig) -> None:
    """Refuses another order while keys are blocked, for their records would go out.

    Raises:
        InvalidConfigError: Keys are blocked, and `config` does not keep order by key.
    """
    if row is not None and row.blocked_keys and config.ordering != Ordering.KEY:
        raise InvalidConfigError(
            f"share.ordering={config.ordering}: blocked keys ({len(row.blocked_keys)}) would be "
            "handed out. Unblock them first: `sharecoord keys unblock --all`",
            metadata={"key": "share.ordering", "value": str(config.ordering)},
        )


def _check_keys(keys: Sequence[bytes]) -> None:
    if not keys:
        raise InvalidRequestError("keys is empty; name one key at least")
    if len(keys) > BLOCKED_KEYS_MAX:
        raise InvalidRequestError(f"keys has {len(keys)} entries; at most {BLOCKED_KEYS_MAX}")
    longest = max(map(len, keys))
    if longest > BLOCKED_KEY_BYTES_MAX:
        raise InvalidRequestError(
            f"keys: one has {longest} bytes; at most {BLOCKED_KEY_BYTES_MAX} can be blocked"
        )


def _said(keys: Sequence[bytes]) -> str:
    """Names keys for people, the first of many."""
    said = ", ".join(key_text(key[:100]) for key in keys[:KEYS_SAID_MAX])
    more = len(keys) - KEYS_SAID_MAX
    return f"{said} and {more} more" if more > 0 else said


def key_text(key: bytes) -> str:
    """A key for people: text in quotation marks, else hexadecimal."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return repr(text) if text.isprintable() else f"0x{key.hex()}"


def _stored_waiting(store: Store, partition_id: int, hashes: frozenset[int]) -> Counter[int]:
    found: Counter[int] = Counter()
    position = 0
    while True:
        page = store.read_in_flight(partition_id, from_offset=position, max_rows=PAGE_ROWS)
        for row in page:
            if row.state == RecordState.AVAILABLE and row.key_hashes is not None:
                keys = struct.unpack(f">{len(row.key_hashes) // 8}Q", row.key_hashes)
                found.update(key for key in keys if key in hashes)
        if len(page) < PAGE_ROWS:
            return found
        position = page[-1].last_offset + 1
