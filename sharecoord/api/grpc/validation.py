"""Checks of requests, and the answer to a join.

Each refusal is an InvalidRequestError that names the field and what is allowed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from sharecoord import __version__
from sharecoord.config.values import is_topic_name
from sharecoord.core.delivery import LostRange
from sharecoord.core.fleet.held_book import lock_book_of
from sharecoord.core.states import AcquireMode
from sharecoord.errors import InvalidRequestError, UnsupportedVersionError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import JoinCommand, Session
from sharecoord.security.principals import Caller
from sharecoord.wire import PROTOCOL_VERSION, codec
from sharecoord.wire import share_service_pb2 as service

GROUP_ID_CHARACTERS_MAX = 249
"""As long as a topic name, so that it fits everywhere a name fits."""

MEMBER_ID_CHARACTERS_MAX = 64
CLIENT_ID_CHARACTERS_MAX = 249
TOPICS_MAX = 1_000
REASON_CHARACTERS_MAX = 1_000
"""Longest reason of a pause: it is shown in one line."""

JOIN_NUMBER_MAX = 2**63 - 1
"""Largest number that every store keeps."""

MAX_POLL_RECORDS_MAX = 10_000
DEFAULT_MAX_POLL_INTERVAL_MS = 300_000

_MODES = {0: AcquireMode.FAIR, **{int(mode): mode for mode in AcquireMode}}


def check_group_id(group_id: str, field: str = "group_id") -> str:
    """Returns a group id that is not empty, not too long, and plain text."""
    if not group_id:
        raise InvalidRequestError(f"{field} is empty; give the name of the share group")
    _check_text(field, group_id, GROUP_ID_CHARACTERS_MAX)
    if group_id != group_id.strip():
        raise InvalidRequestError(f"group_id {group_id!r} begins or ends with a space; remove it")
    return group_id


def check_topics(topics: list[str]) -> tuple[str, ...]:
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


def check_partition(partition: int) -> int:
    """Returns a number that is not negative."""
    if partition < 0:
        raise InvalidRequestError(f"partition is {partition}; it must be 0 or more")
    return partition


def check_reason(reason: str) -> str:
    """Returns an operator's words, perhaps empty, if they are not too long and plain text."""
    return _check_text("reason", reason, REASON_CHARACTERS_MAX)


def _check_text(name: str, text: str, characters_max: int) -> str:
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


def check_most(field: str, number: int, most: int, fix: str = "") -> None:
    """Refuses a number that is larger than `most`."""
    if number > most:
        raise InvalidRequestError(f"{field} {number} is more than {most}{fix}")


def _acquire_mode(number: int) -> AcquireMode:
    if number not in _MODES:
        raise InvalidRequestError(
            f"acquire_mode {number} is not one of FAIR (1), BATCH_OPTIMIZED (2), RECORD_LIMIT (3)"
        )
    return _MODES[number]


def join_command(join: service.Join, caller: Caller) -> tuple[str, JoinCommand]:
    """Group id and join of a caller, checked.

    Raises:
        InvalidRequestError: A field can not be used.
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
    check_most("max_poll_records", join.max_poll_records, MAX_POLL_RECORDS_MAX)
    check_most("join_number", join.join_number, JOIN_NUMBER_MAX, "; count from 1")
    group_id = check_group_id(join.group_id)
    command = JoinCommand(
        member_id=check_member_id(join.member_id),
        client_id=_check_text("client_id", join.client_id, CLIENT_ID_CHARACTERS_MAX),
        host=caller.address,
        topics=topics,
        mode=_acquire_mode(join.acquire_mode),
        max_poll_records=join.max_poll_records,
        max_poll_interval_ms=join.max_poll_interval_ms or DEFAULT_MAX_POLL_INTERVAL_MS,
        credit_records=join.credit.records_total,
        credit_bytes=join.credit.bytes_total,
        lock_book=lock_book_of(map(codec.held_range, join.lock_book)),
        join_number=join.join_number,
        opens=codec.opened(join.opens),
        caller=caller,
    )
    return group_id, command


def joined_message(
    coordinator: Coordinator, group: GroupActor, session: Session, lost: Iterable[LostRange]
) -> service.Joined:
    """The answer to a join; `lost` are the entries of the lock book that are no longer valid."""
    return service.Joined(
        member_epoch=session.member_epoch,
        lock_duration_ms=group.config.lock_duration_ms,
        session_timeout_ms=group.config.session_timeout_ms,
        server_version=__version__,
        protocol_version=PROTOCOL_VERSION,
        lost=[codec.lost_range(item) for item in lost],
        coordinator_id=coordinator.context.coordinator_id,
        ordering=group.config.ordering.value,
    )
