"""An ordered map from disjoint ranges of offsets to values, for windows of any size.

Ranges live in blocks of bounded length, so that one operation costs the same in a window of 1,000
and of 100,000 ranges: a bisect over the blocks, a bisect inside one, a splice of a short list.
Offsets that no range covers have no value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import lt
from typing import Generic, TypeVar

BLOCK_RANGES_MAX = 512
"""A block is split beyond this: splices stay within 4 KiB of pointers."""

V = TypeVar("V")


class _Block(Generic[V]):
    """A run of neighbouring ranges as three parallel lists. Never empty while in the map."""

    __slots__ = ("firsts", "lasts", "values")

    def __init__(self, firsts: list[int], lasts: list[int], values: list[V]) -> None:
        self.firsts = firsts
        self.lasts = lasts
        self.values = values


class RangeMap(Generic[V]):
    """Disjoint inclusive ranges of integers with a value each, in ascending order."""

    __slots__ = ("_blocks", "_count", "_starts")

    def __init__(self) -> None:
        self._blocks: list[_Block[V]] = []
        self._starts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        """Number of ranges."""
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int, V]]:
        """All ranges in order. The map must not change meanwhile."""
        for block in self._blocks:
            yield from zip(block.firsts, block.lasts, block.values, strict=True)

    def fill(self, firsts: Sequence[int], lasts: Sequence[int], values: Sequence[V]) -> None:
        """Puts ascending ranges, given as columns, into an empty map."""
        assert not self._count, "the map is not empty"
        assert all(map(lt, lasts, firsts[1:])), "ranges overlap or are not in order"
        step = BLOCK_RANGES_MAX // 2  # room to split ranges
        for at in range(0, len(firsts), step):
            cut = slice(at, at + step)
            block = _Block(list(firsts[cut]), list(lasts[cut]), list(values[cut]))
            self._blocks.append(block)
            self._starts.append(block.firsts[0])
        self._count = len(firsts)

    def front(self) -> tuple[int, int, V] | None:
        """The lowest range."""
        if not self._blocks:
            return None
        block = self._blocks[0]
        return block.firsts[0], block.lasts[0], block.values[0]

    def get(self, offset: int) -> tuple[int, int, V] | None:
        """The range that covers `offset`."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0:
            return None
        block = self._blocks[at]
        i = bisect_right(block.firsts, offset) - 1
        if block.lasts[i] < offset:
            return None
        return block.firsts[i], block.lasts[i], block.values[i]

    def overlapping(self, first: int, last: int) -> Iterator[tuple[int, int, V]]:
        """The ranges that share an offset with [first, last], whole, in order."""
        if first > last:
            return
        at = max(bisect_right(self._starts, first) - 1, 0)
        while at < len(self._blocks) and self._starts[at] <= last:
            block = self._blocks[at]
            i = max(bisect_right(block.firsts, first) - 1, 0)
            while i < len(block.firsts) and block.firsts[i] <= last:
                if block.lasts[i] >= first:
                    yield block.firsts[i], block.lasts[i], block.values[i]
                i += 1
            at += 1

    def within(self, first: int, last: int) -> Iterator[tuple[int, int, V]]:
        """As `overlapping`, without what lies outside of [first, last]."""
        for start, end, value in self.overlapping(first, last):
            yield max(start, first), min(end, last), value

    def pieces_of(self, offsets: Iterable[int]) -> list[tuple[int, int, V]]:
        """Ascending offsets, each in a range, as few pieces of the ranges that they lie in."""
        pieces: list[tuple[int, int, V]] = []
        end = -1
        for offset in offsets:
            if offset <= end and pieces[-1][1] + 1 == offset:
                pieces[-1] = (pieces[-1][0], offset, pieces[-1][2])
                continue
            found = self.get(offset)
            assert found is not None, f"no range has {offset}"
            end = found[1]
            pieces.append((offset, offset, found[2]))
        return pieces

    def replace(self, first: int, pieces: Sequence[tuple[int, int, V]]) -> None:
        """Puts `pieces` (ascending, inside it) in the place of the range that starts at `first`.

        No pieces = the range goes.
        """
        at = bisect_right(self._starts, first) - 1
        block = self._blocks[at]
        i = bisect_right(block.firsts, first) - 1
        assert block.firsts[i] == first, f"no range starts at {first}"
        if len(pieces) == 1:
            block.firsts[i], block.lasts[i], block.values[i] = pieces[0]
        else:
            block.firsts[i : i + 1] = [p[0] for p in pieces]
            block.lasts[i : i + 1] = [p[1] for p in pieces]
            block.values[i : i + 1] = [p[2] for p in pieces]
            self._count += len(pieces) - 1
        self._mend(at, block)

    def insert(self, first: int, last: int, value: V) -> None:
        """Adds a range that overlaps none."""
        self._count += 1
        at = bisect_right(self._starts, first) - 1
        if at < 0:
            if not self._blocks:
                self._blocks.append(_Block([first], [last], [value]))
                self._starts.append(first)
                return
            at = 0
        block = self._blocks[at]
        i = bisect_right(block.firsts, first)
        assert i == 0 or block.lasts[i - 1] < first, (
            f"[{first}, {last}] overlaps its left neighbour"
        )
        block.firsts.insert(i, first)
        block.lasts.insert(i, last)
        block.values.insert(i, value)
        self._mend(at, block)

    def _mend(self, at: int, block: _Block[V]) -> None:
        """Restores the rules for blocks after `block` (at index `at`) changed."""
        size = len(block.firsts)
        if size == 0:
            del self._blocks[at]
            del self._starts[at]
            return
        if size <= BLOCK_RANGES_MAX:
            self._starts[at] = block.firsts[0]
            return
        half = BLOCK_RANGES_MAX // 2
        parts = [
            _Block(
                block.firsts[i : i + half], block.lasts[i : i + half], block.values[i : i + half]
            )
            for i in range(0, size, half)
        ]
        self._blocks[at : at + 1] = parts
        self._starts[at : at + 1] = [p.firsts[0] for p in parts]
