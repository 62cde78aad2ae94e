"""What a reader who opens the page for the first time has to know; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WORDS: Final[Mapping[str, str]] = {
    "Jain's index": (
        "how even the parts were that members got of what they wanted at the same time: 1 = "
        "everybody got its fair part, 1/n = one of n members got all. From 0.95 on this page calls "
        "it fair, below 0.80 unfair. Worst Jain is that of the worst window."
    ),
    "Gini coefficient": (
        "how unequally records were spread over all members of the range, whenever they were "
        "there: 0 = all got as many, near 1 = one got nearly all. Members that were there for a "
        "shorter time get fewer, which is not unfair."
    ),
    "starved": (
        "a member that wanted records for 5 s or longer and got none, while others did and at "
        "least one would have been its part."
    ),
    "fair part": (
        "what a member got against what an equal sharing would have given it, at the times at "
        "which it wanted something: 1 = just as much."
    ),
    "behind": (
        "a share-partition where what waits needs longer than 10 s at its usual speed, or nothing "
        "is finished any more, and the oldest record is older than that."
    ),
    "poison": (
        "a key of which a record was given up, or failed three times: it will most likely fail "
        "again."
    ),
    "log complete": (
        "changes in this event log against changes that there were, by their numbers: with less "
        "than 100 % the figures are those of a part of what happened."
    ),
}
