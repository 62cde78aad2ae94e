"""Values that look and compress like the JSON of an application, drawn from a seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Final

from sharecoord.bench.engine.cell import MAX_BATCH_BYTES

_POOL_BYTES: Final = 2 * MAX_BATCH_BYTES
"""No record batch has a text twice, or it would compress better than what applications send."""
_POOL_MOST: Final = 25_000
"""Of short texts there are so many, which take a quarter of a second to draw."""
_STATES: Final = ("created", "paid", "packed", "shipped", "delivered", "returned")
_CITIES: Final = ("Aachen", "Brest", "Cork", "Delft", "Evora", "Florence", "Ghent", "Hamburg")


@functools.lru_cache(maxsize=2)
def json_texts(length: int, seed: int) -> Sequence[bytes]:
    """Texts of a length in bytes, each the begin of the JSON of an order with its lines.

    They are to be taken in turn. librdkafka compresses them to 0.4 with lz4, to 0.23 with zstd.
    """
    if length <= 0:
        return (b"",)
    generator = random.Random(f"values {seed}")
    count = min(_POOL_MOST, -(-_POOL_BYTES // length))
    return tuple(_text(generator, length) for _ in range(count))


def _text(generator: random.Random, length: int) -> bytes:
    number = generator.randrange
    text = (
        f'{{"order":{number(10**9)},"state":"{generator.choice(_STATES)}",'
        f'"at":{1_700_000_000_000 + number(10**9)},"city":"{generator.choice(_CITIES)}",'
        f'"customer":"{number(2**64):016x}","lines":['
    )
    while len(text) < length:
        text += (
            f'{{"article":"{number(2**40):010x}","name":"article no. {number(10**5)}",'
            f'"quantity":{1 + number(9)},"price_cents":{number(10**5)},"lot":{number(10**6)}}},'
        )
    return text.encode("ascii")[:length]
