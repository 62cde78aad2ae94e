"""How fast the core decides: `python tests/perf/core_speed.py` prints figures of this machine.

CPU time of one thread, best of several rounds, nothing stored, no payload. Figures in records per
second are for people; tests assert ratios only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sharecoord.core.changes import PartitionHead
from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.share_partition import AcknowledgedRange, SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, AcquireMode, Ordering
from sharecoord.core.window.window import Keys

BATCH = 500
ROUNDS = 5
ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
RENEW, RETURN = AcknowledgeType.RENEW, AcknowledgeType.RETURN


def new_partition(ordering: Ordering = Ordering.UNORDERED) -> SharePartition:
    """An empty share-partition with a large window."""
    settings = PartitionSettings(record_locks_max=100_000, delivery_limit=50, ordering=ordering)
    return SharePartition(PartitionHead(0, 0, -1, 0, 0), owner_epoch=1, settings=settings)


def acquire_fresh(partition: SharePartition, now_ms: int, keys: bytes | None = None) -> list[int]:
    """Acquires the next 500 records; returns first, last, token of the first range."""
    first = partition.window.end_offset
    run = Run(first, first + BATCH - 1, Keys(first, keys) if keys else None)
    decision = partition.decide_acquire(
        now_ms, "m", max_records=BATCH, mode=AcquireMode.FAIR, due=(), fresh=[run]
    )
    partition.apply(decision)
    taken = decision.acquired[0]
    return [taken.first, taken.last, taken.lock_token]


def filled(records: int) -> tuple[SharePartition, list[list[int]]]:
    """A window of so many acquired records, with its batches (first, last, token)."""
    partition = new_partition()
    batches = [acquire_fresh(partition, at) for at in range(records // BATCH)]
    partition.window.dirty.clear()
    return partition, batches


def seconds(work: Callable[[], int]) -> float:
    """CPU seconds per unit of `work`, which returns its number of units."""
    began = time.process_time()
    units = work()
    return (time.process_time() - began) / units


def best(measure: Callable[[], float], rounds: int = ROUNDS) -> float:
    """The lowest of several rounds: what the code costs when nothing else disturbs it."""
    return min(measure() for _ in range(rounds))


def contiguous(keys: bytes | None = None, ordering: Ordering = Ordering.UNORDERED) -> float:
    """Seconds per record: acquire 500, accept 500."""
    partition = new_partition(ordering)

    def work() -> int:
        for at in range(200):
            first, last, token = acquire_fresh(partition, at, keys)
            item = AcknowledgedRange(first, last, ACCEPT, token)
            partition.apply(partition.decide_acknowledge(at, "m", [item]))
            partition.window.dirty.clear()
        return 200 * BATCH

    return seconds(work)


def alternating(window_records: int) -> float:
    """Seconds per acknowledgement: every second record accepted, 250 in one request."""
    partition, batches = filled(window_records)
    batches = batches[-40:]

    def work() -> int:
        for first, last, token in batches:
            items = [AcknowledgedRange(at, at, ACCEPT, token) for at in range(first, last, 2)]
            partition.apply(partition.decide_acknowledge(0, "m", items))
        return len(batches) * BATCH // 2

    return seconds(work)


def one_acknowledgement(window_records: int) -> float:
    """Seconds per request that accepts one record of a fragmented window."""
    partition, batches = fragmented(window_records, RENEW)
    first, last, token = batches[len(batches) // 2]

    def work() -> int:
        for at in range(first, last, 2):
            item = AcknowledgedRange(at, at, ACCEPT, token)
            partition.apply(partition.decide_acknowledge(90_000, "m", [item]))
        return BATCH // 2

    return seconds(work)


def fragmented(
    window_records: int, kind: AcknowledgeType
) -> tuple[SharePartition, list[list[int]]]:
    """A window in which every second record was released or renewed, each at its own time."""
    partition, batches = filled(window_records)
    for first, last, token in batches:
        for at in range(first, last, 2):
            item = AcknowledgedRange(at, at, kind, token)
            partition.apply(partition.decide_acknowledge(1_000 + at, "m", [item]))
    partition.window.dirty.clear()
    return partition, batches


def one_redelivery(window_records: int) -> float:
    """Seconds per acquire of one due record: find it, hand it out, take it back."""
    partition, _ = fragmented(window_records, RELEASE)
    partition.due_ranges(1)

    def work() -> int:
        for _ in range(200):
            decision = partition.decide_acquire(
                0,
                "m",
                max_records=1,
                mode=AcquireMode.FAIR,
                due=partition.due_ranges(1),
                fresh=(),
            )
            partition.apply(decision)
            taken = decision.acquired[0]
            item = AcknowledgedRange(taken.first, taken.last, RETURN, taken.lock_token)
            partition.apply(partition.decide_acknowledge(0, "m", [item]))
        return 200

    return seconds(work)


def one_expiry(window_records: int) -> float:
    """Seconds per lock of one record that ends."""
    partition, batches = fragmented(window_records, RENEW)
    partition.apply(partition.decide_expire(30_900))
    lock_ms = partition.settings.lock_duration_ms

    def work() -> int:
        first = batches[0][0]
        for at in range(first, first + BATCH, 2):
            partition.apply(partition.decide_expire(1_000 + at + lock_ms))
        return BATCH // 2

    return seconds(work)


OPERATIONS: dict[str, Callable[[int], float]] = {
    "one acknowledgement": one_acknowledgement,
    "one redelivery": one_redelivery,
    "one expiry": one_expiry,
}


def main() -> None:
    """Prints the figures."""
    print(f"acquire + accept of 500: {1 / best(contiguous):,.0f} records/s (target 10,000,000)")
    for size in (1_000, 100_000):
        rate = 1 / best(lambda size=size: alternating(size))  # type: ignore[misc]
        print(f"alternating, window {size:,}: {rate:,.0f} acknowledgements/s (target 500,000)")
    for name, operation in OPERATIONS.items():
        small = best(lambda operation=operation: operation(1_000))  # type: ignore[misc]
        large = best(lambda operation=operation: operation(100_000), 2)  # type: ignore[misc]
        print(
            f"{name}: {small * 1e6:.1f} us at window 1,000, {large * 1e6:.1f} us at 100,000, "
            f"ratio {large / small:.2f} (target 1.5)"
        )
    keys = b"".join((at % 300 + 1).to_bytes(8, "big") for at in range(BATCH))
    rate = 1 / best(lambda: contiguous(keys, Ordering.KEY))
    print(f"key order, acquire + accept of 500 with 300 keys: {rate:,.0f} records/s")
    rate = 1 / best(lambda: contiguous(None, Ordering.PARTITION))
    print(f"partition order, acquire + accept of 500: {rate:,.0f} records/s")


if __name__ == "__main__":
    main()
