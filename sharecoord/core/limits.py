"""Limits of the core: each with a name, a unit and a reason. Settings are in `config`."""

from __future__ import annotations

ACQUIRE_RECORDS_MAX = 10_000
"""Most records of one acquire: bounds one message and one range's key column."""

HAND_OUTS_FREE_FACTOR = 10
"""Hand-backs cost nothing until 10 x the delivery limit, then they wait (design 5.3)."""

HAND_OUT_DELAY_MS = 1_000
"""First wait of a record that keeps coming back unseen; doubles."""

HAND_OUT_DELAY_MAX_MS = 60_000
"""Longest such wait."""

WINDOW_RECORDS_MAX = 100_000
"""Largest window: what 200 ms of the fastest member need, with room."""

REASON_BYTES_MAX = 1_024
"""Longest reason text of a worker that is kept."""

TOKEN_SEQUENCE_MAX = 2**32 - 1
"""Lock tokens have the owner epoch in the high half: a full sequence forces a new claim."""
