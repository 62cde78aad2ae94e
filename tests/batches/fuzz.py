"""Made-up batches for both openers, for some time: `make fuzz`.

The extension is built with sanitizers there, and every batch stands in a piece of memory of exactly
its size: one byte that is read too much ends the run. Equal outcomes are asked for, too.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sharecoord_batches import records
from sharecoord_batches.errors import BatchError
from sharecoord_batches.records import Part

from tests.batches.encoder import FIELDS, Record, body, unsigned, varint

BYTES = (
    0,
    1,
    2,
    6,
    7,
    0x0C,
    0x10,
    0x3F,
    0x40,
    0x7E,
    0x7F,
    0x80,
    0x81,
    0xC3,
    0xED,
    0xF4,
    0xFE,
    0xFF,
)
NUMBERS = (0, 1, -1, 63, 64, 8_191, 8_192, 1 << 20, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62)
EDGES = (*NUMBERS, (1 << 63) - 1, -(1 << 63))
NAMES = (b"", b"name", b"x\xff", "ключ".encode(), b"\xed\xa0\x80", b"\xf4\x8f\xbf\xbf", b"\xe0\x80")


def main() -> int:
    """Says what was done; the exit code is 1 at the first difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extension", type=Path, help="the file (default: the installed one)")
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--count", type=int, default=10**9, help="batches at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    native = loaded(options.extension)
    end = time.monotonic() + options.seconds
    done = good = 0
    for done in range(1, options.count + 1):
        seed = options.seed * 10**9 + done
        outcome = compare(native, random.Random(seed))
        good += outcome
        if time.monotonic() > end:
            break
    print(f"{done} batches, {good} of them could be opened, no difference; seed {options.seed}")
    return 0


def loaded(path: Path | None) -> ModuleType:
    """The extension in a file."""
    if path is None:
        from sharecoord_batches import _native

        return _native
    spec = importlib.util.spec_from_file_location("sharecoord_batches._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(native: ModuleType, rng: random.Random) -> bool:
    """One life: a batch or some, in both openers. True = they could be opened."""
    parts = [made_up(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    if rng.random() < 0.7:
        base = 0
        for i, part in enumerate(parts):
            at = base + rng.choice((0, 0, 0, 1, 70_000)) - rng.choice((0, 0, 0, 0, 1))
            parts[i] = part._replace(
                base_offset=at, first=max(at + part.first - part.base_offset, 0)
            )
            base = at + part.last_delta + 1
    outcomes = []
    for module in (records, native):
        found = [outcome(module.columns, part) for part in parts]
        found += [outcome(module.has_header, part, b"na") for part in parts]
        found.append(outcome(module.encode, parts, FIELDS))
        outcomes.append(found)
    if outcomes[0] != outcomes[1]:
        print(f"different: {parts}\nPython: {outcomes[0]}\nC: {outcomes[1]}", file=sys.stderr)
        raise SystemExit(1)
    return len(outcomes[0][-1]) == 6  # type: ignore[arg-type]


def outcome(call: Callable[..., Any], *args: object) -> object:
    """What a call returns, or how it refuses."""
    try:
        return call(*args)
    except BatchError as error:
        return type(error), str(error)


def made_up(rng: random.Random) -> Part:
    """A batch that is right, or nearly."""
    some, delta = [], rng.choice((-1, -1, 62, 8_190))
    for _ in range(rng.randint(1, 6)):
        delta += rng.choice((1, 1, 1, 2, 300))
        headers = [(rng.choice(NAMES), content(rng)) for _ in range(rng.choice((0, 0, 0, 1, 3)))]
        time_delta = rng.choice((0, 3, 80, -2, rng.choice(EDGES)))
        some.append(Record(delta, time_delta, content(rng), content(rng), headers))
    data = bytearray(body(some))
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 5))):
        ruin(rng, data)
    count = max(len(some) + rng.choice((0, 0, 0, 0, 1, -1)), 0)
    base = rng.choice((0, 0, 5, 1 << 40))
    first = base + rng.choice((0, 0, 0, 1, 2, 63, 300))
    last = rng.choice(((1 << 63) - 1, first, first + 1, first + 301))
    return Part(
        exact(bytes(data)), 0, 0, -1, len(data), count, base,
        max(delta + rng.choice((0, 0, 0, 1, -1)), 0), rng.choice((1_000, -5, *EDGES)),
        rng.choice((-1, -1, 7)), first, last,
    )  # fmt: skip


def content(rng: random.Random) -> bytes | None:
    """A key or a value."""
    size = rng.choice((-1, 0, 1, 5, 63, 64, 200, rng.choice((8_180, 8_191, 8_200, 70_000))))
    return None if size < 0 else bytes([rng.choice(BYTES)]) * size


def ruin(rng: random.Random, data: bytearray) -> None:
    """Changes something."""
    at = rng.randrange(len(data) + 1) if rng.random() < 0.5 else min(rng.randrange(40), len(data))
    how = rng.randrange(5)
    if how == 0:
        data[at : at + 1] = bytes([rng.choice(BYTES)])
    elif how == 1:
        data[at:at] = varint(rng.choice(EDGES))
    elif how == 2:
        data[at : at + rng.randint(1, 3)] = unsigned(rng.choice(EDGES) % (1 << 64))
    elif how == 3:
        del data[at : at + rng.randint(1, 9)]
    else:
        del data[len(data) - min(at, len(data)) :]


def exact(data: bytes) -> memoryview:
    """The bytes in a piece of memory of their own, which has not one more."""
    kind: Sequence[Any] | Any = ctypes.c_ubyte * len(data)
    return memoryview(kind.from_buffer_copy(data)).cast("B") if data else memoryview(b"")


if __name__ == "__main__":
    raise SystemExit(main())
