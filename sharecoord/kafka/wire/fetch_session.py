"""A fetch session (KIP-227): the broker remembers partitions, requests name what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

from kio.schema.errors import ErrorCode

from sharecoord.kafka.wire import fetch
from sharecoord.kafka.wire.fetch import TopicName, Wanted

T = TypeVar("T")

Key = tuple[TopicName, int]
"""A partition as the broker knows it: its topic's name, or (version 13) the id, and its number."""

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 1

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
        # With version 13, of a whole request: a topic is known under one more id, or no more.
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)
"""After them a full request begins another session."""


class FetchSession(Generic[T]):
    """What a broker remembers of our requests on one connection, with who reads each partition."""

    def __init__(self) -> None:
        self.version = fetch.BY_NAME
        self.entries: dict[Key, T] = {}
        self.asked: dict[Key, Wanted] = {}
        """What was last asked of each entry."""
        self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._changed: dict[Key, Wanted] = {}
        """What the next request has to name."""
        self._forgotten: set[Key] = set()

    @property
    def is_kept(self) -> bool:
        """Whether the broker remembers; else each request names all."""
        return self._epoch != FIRST_EPOCH

    def put(self, key: Key, wanted: Wanted, who: T) -> bool:
        """Asks for a partition from the next request on; returns whether that is news."""
        self.entries[key] = who
        if self.asked.get(key) == wanted:
            return False
        self.asked[key] = self._changed[key] = wanted
        # A request that forgets a partition and names it, too, would leave it forgotten.
        self._forgotten.discard(key)
        return True

    def drop(self, key: Key) -> None:
        """Asks no more for a partition; answers under way about it find nobody."""
        del self.entries[key], self.asked[key]
        self._changed.pop(key, None)
        self._forgotten.add(key)

    def to_end(self, key: Key) -> None:
        """Lets others go first: a broker fills its answer in the order of a full request."""
        self.entries[key] = self.entries.pop(key)
        self.asked[key] = self.asked.pop(key)

    def renew(self, version: int | None = None) -> list[T]:
        """Begins another session, with nothing in it; returns who was in it."""
        left = list(self.entries.values())
        self.version = self.version if version is None else version
        self.entries, self.asked, self._changed, self._forgotten = {}, {}, {}, set()
        # Under its id, so that the broker forgets the old one.
        self._epoch = FIRST_EPOCH
        return left

    def forget_id(self) -> None:
        """Notes that the broker does not know the session."""
        self._id = NO_SESSION

    def request(
        self, *, max_wait_ms: int, min_bytes: int, max_bytes: int, committed: bool, rack: str
    ) -> bytes:
        """The body of the next request."""
        changed = self._changed if self.is_kept else self.asked
        forgotten = self._forgotten if self.is_kept else set[Key]()
        body = fetch.request(
            self.version,
            _by_topic((topic, wanted) for (topic, _), wanted in changed.items()),
            _by_topic(forgotten),
            session=(self._id, self._epoch),
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            committed=committed,
            rack=rack,
        )
        self._changed, self._forgotten = {}, set()
        return body

    def answered(self, session_id: int) -> None:
        """Takes in an answer without an error of the whole; 0 = the broker does not remember."""
        if not self.is_kept:
            self._id = session_id
            self._epoch = FIRST_EPOCH if session_id == NO_SESSION else 1
        else:
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1


V = TypeVar("V")


def _by_topic(pairs: Iterable[tuple[TopicName, V]]) -> Iterable[tuple[TopicName, Sequence[V]]]:
    found: dict[TopicName, list[V]] = {}
    for topic, each in pairs:
        found.setdefault(topic, []).append(each)
    return found.items()
