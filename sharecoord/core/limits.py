"""Limits of the core: each with a name, a unit and a reason. Settings are in `config`."""

from __future__ import annotations

ACQUIRE_RECORDS_MAX = 10_000
"""Most records of one acquire: bounds one message and one range's key column."""

DELIVERY_BYTES_MAX = 1 << 20
"""Most bytes of records in one delivery, unless its first record alone has more. A message costs a
coordinator 280 us and a client 115 us, whatever is in it; larger ones would save nothing more, and
their first record would wait for the last."""

CHAIN_RECORDS_MAX = 256
"""Most records of one key that are out at a time, in `key` order: they run one after the other, so
more would only wait under their locks, in the place of other keys. Enough for a key of 50,000
records/s, at 5 ms from an acknowledgement to the next delivery."""

HAND_OUTS_FREE_FACTOR = 10
"""Hand-backs cost nothing until 10 x the delivery limit, then they wait (design 5.3)."""

HAND_OUT_DELAY_MS = 1_000
"""First wait of a record that keeps coming back unseen; doubles."""

HAND_OUT_DELAY_MAX_MS = 60_000
"""Longest such wait."""

WINDOW_RECORDS_MAX = 100_000
"""Largest window: the records of 200 ms of the fastest member, with room."""

REASON_BYTES_MAX = 1_024
"""Longest reason text of a worker that is kept."""

CHECKPOINT_BYTES_MAX = 64 << 10
"""Largest checkpoint of a record: state to go on from, not a result. It fits one request."""

CHECKPOINT_HEADER_BYTES_MAX = 4 << 10
"""Largest checkpoint that goes with a dead letter, as a header: topics bound whole messages."""

CHECKPOINT_OVERHEAD_BYTES = 256
"""Bytes of a checkpoint beside its data, in memory and towards the group's limit."""

KEPT_OVERHEAD_BYTES = 256
"""Bytes of a kept payload beside its data, in the store and towards the group's limit."""

KEPT_MEMORY_BYTES = 160
"""Bytes of a kept payload in memory: its offset and its size."""

BLOCKED_KEYS_MAX = 1_000
"""Blocked keys of a group: an operator's list, which every coordinator holds in memory."""

BLOCKED_KEY_BYTES_MAX = 4_096
"""Longest key that can be blocked: such a list stays below 4 MiB a group."""

TOKEN_SEQUENCE_MAX = 2**32 - 1
"""Lock tokens have the owner epoch in the high half: a full sequence forces a new claim."""
