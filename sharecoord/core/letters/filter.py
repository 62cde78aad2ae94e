"""The filter for dead letters of operators' commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sharecoord.core.letters.letter import Letter
from sharecoord.core.records import header_text
from sharecoord.core.states import ArchiveReason
from sharecoord.errors import InvalidRequestError

PARTS_MAX: Final = 1_000
"""Values in one list of a filter: each letter is compared with all of them."""

REASONS: Final = (str(ArchiveReason.REJECTED), str(ArchiveReason.DELIVERY_LIMIT))


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """A filter: every part that is given must hold, of a list one value."""

    reasons: tuple[str, ...] = ()
    topic: str = ""
    """Topic, partitions and offsets are those of the records."""
    partitions: tuple[int, ...] = ()
    first_offset: int | None = None
    last_offset: int | None = None
    """Inclusive."""
    key: bytes | None = None
    key_prefix: bytes | None = None
    failed_from_ms: int | None = None
    """Inclusive, milliseconds since the epoch."""
    failed_to_ms: int | None = None
    """Exclusive."""
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """Headers of the record; each must be there, with this value if one is given. Names are as
    `header_text` shows them."""
    ids: tuple[str, ...] = ()
    text: str = ""
    """A part of the error text, in upper or lower case."""

    @property
    def is_empty(self) -> bool:
        """Whether the filter excludes no letter."""
        return self == LetterFilter()

    def check(self) -> None:
        """Refuses a filter that no letter can match, or that surely is a mistake.

        Raises:
            InvalidRequestError: Names the field and the fix.
        """
        for name in ("reasons", "partitions", "headers", "ids"):
            if len(getattr(self, name)) > PARTS_MAX:
                raise InvalidRequestError(f"filter.{name} has more than {PARTS_MAX} values")
        wrong = next((reason for reason in self.reasons if reason not in REASONS), None)
        if wrong is not None:
            raise InvalidRequestError(
                f"filter.reasons: {wrong!r} is not one of {', '.join(REASONS)}"
            )
        if self.partitions and not self.topic:
            raise InvalidRequestError("filter.partitions needs filter.topic: of which topic?")
        if (self.first_offset, self.last_offset) != (None, None) and len(self.partitions) != 1:
            raise InvalidRequestError(
                "filter.first_offset and last_offset need filter.topic and one of "
                "filter.partitions: offsets count within one partition"
            )
        if self.key_prefix == b"":
            raise InvalidRequestError("filter.key_prefix is empty; every key begins like that")
        self._check_order("first_offset", "last_offset", least=0)
        self._check_order("failed_from_ms", "failed_to_ms", least=1)
        if any(not name for name, _ in self.headers):
            raise InvalidRequestError("filter.headers: a name is empty; give the header's name")
        if "" in self.ids:
            raise InvalidRequestError("filter.ids: one is empty; give the letter's id")

    def _check_order(self, first: str, last: str, *, least: int) -> None:
        low, high = getattr(self, first), getattr(self, last)
        for name, value in ((first, low), (last, high)):
            if value is not None and value < 0:
                raise InvalidRequestError(f"filter.{name} is {value}; it must be 0 or more")
        if low is not None and high is not None and high - low < least:
            raise InvalidRequestError(
                f"filter.{last} {high} is before filter.{first} {low}: no letter can match"
            )

    def matches(self, letter: Letter) -> bool:
        """Whether every part that is given holds."""
        if self.reasons and letter.reason not in self.reasons:
            return False
        if self.ids and letter.id not in self.ids:
            return False
        if not (self._matches_place(letter) and self._matches_time(letter)):
            return False
        return self._matches_said(letter)

    def _matches_place(self, letter: Letter) -> bool:
        if self.topic and letter.topic != self.topic:
            return False
        if self.partitions and letter.partition not in self.partitions:
            return False
        if self.first_offset is not None and letter.offset < self.first_offset:
            return False
        return self.last_offset is None or letter.offset <= self.last_offset

    def _matches_time(self, letter: Letter) -> bool:
        if self.failed_from_ms is not None and letter.failed_at_ms < self.failed_from_ms:
            return False
        return self.failed_to_ms is None or letter.failed_at_ms < self.failed_to_ms

    def _matches_said(self, letter: Letter) -> bool:
        if self.key is not None and letter.key != self.key:
            return False
        if self.key_prefix is not None and not (letter.key or b"").startswith(self.key_prefix):
            return False
        if self.text and self.text.lower() not in letter.message.lower():
            return False
        return all(
            any(
                header_text(name) == wanted and value in (None, found)
                for name, found in letter.headers
            )
            for wanted, value in self.headers
        )
