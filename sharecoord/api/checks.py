"""Checks of what callers of all protocols name: groups, topics, members.

Each refusal is an InvalidRequestError that names the field and what is allowed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

from sharecoord.config.values import is_topic_name
from sharecoord.errors import InvalidRequestError

GROUP_ID_CHARACTERS_MAX: Final = 249
"""As long as a topic name, so that it fits everywhere a name fits."""

MEMBER_ID_CHARACTERS_MAX: Final = 64
CLIENT_ID_CHARACTERS_MAX: Final = 249
SOFTWARE_CHARACTERS_MAX: Final = 257
"""Longest name and version of a client that are kept."""

TOPICS_MAX: Final = 1_000
REASON_CHARACTERS_MAX: Final = 1_000
"""Longest reason of a pause: it is shown in one line."""


def check_group_id(group_id: str, field: str = "group_id") -> str:
    """Returns a group id that is not empty, not too long, and plain text."""
    if not group_id:
        raise InvalidRequestError(f"{field} is empty; give the name of the share group")
    check_text(field, group_id, GROUP_ID_CHARACTERS_MAX)
    if group_id != group_id.strip():
        raise InvalidRequestError(f"group_id {group_id!r} begins or ends with a space; remove it")
    return group_id


def check_topics(topics: Sequence[str]) -> tuple[str, ...]:
    """Returns the names, each once, if Kafka takes each of them."""
    if len(topics) > TOPICS_MAX:
        raise InvalidRequestError(
            f"topics has {len(topics)} names; at most {TOPICS_MAX} per member"
        )
    for topic in topics:
        if not is_topic_name(topic):
            raise InvalidRequestError(
                f"topics: {topic!r} is not a topic name; 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'"
            )
    return tuple(dict.fromkeys(topics))


def check_member_id(member_id: str) -> str:
    """Returns a member id that is not empty, not too long, and plain text."""
    if not member_id or len(member_id) > MEMBER_ID_CHARACTERS_MAX:
        raise InvalidRequestError(
            f"member_id has {len(member_id)} characters; make a UUID once and keep it "
            f"(1 to {MEMBER_ID_CHARACTERS_MAX})"
        )
    _refuse_control_characters("member_id", member_id)
    return member_id


def software_of(text: str) -> str:
    """What a client says that it is, as it may be kept and shown; it is no reason to refuse it."""
    return text[:SOFTWARE_CHARACTERS_MAX] if text.isprintable() else ""


def check_partition(partition: int) -> int:
    """Returns a number that is not negative."""
    if partition < 0:
        raise InvalidRequestError(f"partition is {partition}; it must be 0 or more")
    return partition


def check_reason(reason: str) -> str:
    """Returns an operator's words, perhaps empty, if they are not too long and plain text."""
    return check_text("reason", reason, REASON_CHARACTERS_MAX)


def check_text(name: str, text: str, characters_max: int) -> str:
    """Returns a text that is not too long, and plain."""
    if len(text) > characters_max:
        raise InvalidRequestError(
            f"{name} has {len(text)} characters; {characters_max} are the most"
        )
    _refuse_control_characters(name, text)
    return text


def _refuse_control_characters(name: str, text: str) -> None:
    bad = next((c for c in text if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}), None)
    if bad is not None:
        raise InvalidRequestError(
            f"{name} {text!r} contains the control character U+{ord(bad):04X}; remove it"
        )
