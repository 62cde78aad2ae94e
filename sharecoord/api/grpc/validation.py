"""Checks of what clients send; every refusal names the field and what is allowed."""

from __future__ import annotations

import re
import unicodedata

from sharecoord.core.fleet.held_book import lock_book_of
from sharecoord.core.states import AcquireMode
from sharecoord.errors import InvalidRequestError, UnsupportedVersionError
from sharecoord.runtime.member.session import JoinCommand
from sharecoord.wire import PROTOCOL_VERSION, codec
from sharecoord.wire import share_service_pb2 as service

GROUP_ID_CHARACTERS_MAX = 249
"""As long as a topic name, so that it fits everywhere a name fits."""

MEMBER_ID_CHARACTERS_MAX = 64
CLIENT_ID_CHARACTERS_MAX = 249
TOPICS_MAX = 1_000
REASON_CHARACTERS_MAX = 1_000
"""What an operator says of a pause: it is shown in one line."""

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
JOIN_NUMBER_MAX = 2**63 - 1
"""What stores keep."""

MAX_POLL_RECORDS_MAX = 10_000
DEFAULT_MAX_POLL_INTERVAL_MS = 300_000

_MODES = {0: AcquireMode.FAIR, **{int(mode): mode for mode in AcquireMode}}


def check_group_id(group_id: str, field: str = "group_id") -> str:
    """A usable group id, as a field of a request has it.

    Raises:
        InvalidRequestError: Empty, too long, or with control characters.
    """
    if not group_id:
        raise InvalidRequestError(f"{field} is empty; give the name of the share group")
    if len(group_id) > GROUP_ID_CHARACTERS_MAX:
        raise InvalidRequestError(
            f"{field} has {len(group_id)} characters; {GROUP_ID_CHARACTERS_MAX} are the most"
        )
    _refuse_control_characters(field, group_id)
    if group_id != group_id.strip():
        raise InvalidRequestError(f"group_id {group_id!r} begins or ends with a space; remove it")
    return group_id


def check_topics(topics: list[str]) -> tuple[str, ...]:
    """Usable topic names, each once.

    Raises:
        InvalidRequestError: Too many, or one that Kafka would refuse.
    """
    if len(topics) > TOPICS_MAX:
        raise InvalidRequestError(
            f"topics has {len(topics)} names; at most {TOPICS_MAX} per member"
        )
    for topic in topics:
        if not TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
            raise InvalidRequestError(
                f"topics: {topic!r} is not a topic name; 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-'"
            )
    return tuple(dict.fromkeys(topics))


def check_member_id(member_id: str) -> str:
    """A usable member id.

    Raises:
        InvalidRequestError: Empty or too long.
    """
    if not member_id or len(member_id) > MEMBER_ID_CHARACTERS_MAX:
        raise InvalidRequestError(
            f"member_id has {len(member_id)} characters; make a UUID once and keep it "
            f"(1 to {MEMBER_ID_CHARACTERS_MAX})"
        )
    _refuse_control_characters("member_id", member_id)
    return member_id


def check_partition(partition: int) -> int:
    """A usable partition number.

    Raises:
        InvalidRequestError: It is negative.
    """
    if partition < 0:
        raise InvalidRequestError(f"partition is {partition}; it must be 0 or more")
    return partition


def check_reason(reason: str) -> str:
    """An operator's words; they may be empty.

    Raises:
        InvalidRequestError: Too long, or with control characters.
    """
    if len(reason) > REASON_CHARACTERS_MAX:
        raise InvalidRequestError(
            f"reason has {len(reason)} characters; {REASON_CHARACTERS_MAX} are the most"
        )
    _refuse_control_characters("reason", reason)
    return reason


def check_client_id(client_id: str) -> str:
    """A usable client id; it may be empty.

    Raises:
        InvalidRequestError: Too long, or with control characters.
    """
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise InvalidRequestError(
            f"client_id has {len(client_id)} characters; {CLIENT_ID_CHARACTERS_MAX} are the most"
        )
    _refuse_control_characters("client_id", client_id)
    return client_id


def _refuse_control_characters(name: str, text: str) -> None:
    bad = next((c for c in text if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}), None)
    if bad is not None:
        raise InvalidRequestError(
            f"{name} {text!r} contains the control character U+{ord(bad):04X}; remove it"
        )


def _acquire_mode(number: int) -> AcquireMode:
    if number not in _MODES:
        raise InvalidRequestError(
            f"acquire_mode {number} is not one of FAIR (1), BATCH_OPTIMIZED (2), RECORD_LIMIT (3)"
        )
    return _MODES[number]


def join_command(join: service.Join, host: str) -> tuple[str, JoinCommand]:
    """Group id and join, checked.

    Raises:
        InvalidRequestError: A field is unusable; it is named.
        UnsupportedVersionError: The client speaks another protocol version.
    """
    if join.protocol_version != PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"protocol_version {join.protocol_version} (SDK {join.sdk_version or 'unknown'}) is "
            f"not served here; this coordinator serves {PROTOCOL_VERSION}: install a "
            "sharecoord-sdk of this release or one of the two before it"
        )
    topics = check_topics(list(join.topics))
    if not topics:
        raise InvalidRequestError("topics is empty; subscribe to one topic at least")
    if join.max_poll_records > MAX_POLL_RECORDS_MAX:
        raise InvalidRequestError(
            f"max_poll_records {join.max_poll_records} is more than {MAX_POLL_RECORDS_MAX}"
        )
    if join.join_number > JOIN_NUMBER_MAX:
        raise InvalidRequestError(
            f"join_number {join.join_number} is more than {JOIN_NUMBER_MAX}; count from 1"
        )
    group_id = check_group_id(join.group_id)
    command = JoinCommand(
        member_id=check_member_id(join.member_id),
        client_id=check_client_id(join.client_id),
        host=host,
        topics=topics,
        mode=_acquire_mode(join.acquire_mode),
        max_poll_records=join.max_poll_records,
        max_poll_interval_ms=join.max_poll_interval_ms or DEFAULT_MAX_POLL_INTERVAL_MS,
        credit_records=join.credit.records_total,
        credit_bytes=join.credit.bytes_total,
        lock_book=lock_book_of(map(codec.held_range, join.lock_book)),
        join_number=join.join_number,
    )
    return group_id, command
