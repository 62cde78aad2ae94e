"""Checks of requests, and the answer to a join.

Each refusal is an InvalidRequestError that names the field and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable

from sharecoord import __version__
from sharecoord.api.checks import (
    CLIENT_ID_CHARACTERS_MAX,
    check_group_id,
    check_member_id,
    check_text,
    check_topics,
    software_of,
)
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

JOIN_NUMBER_MAX = 2**63 - 1
"""Largest number that every store keeps."""

MAX_POLL_RECORDS_MAX = 10_000
DEFAULT_MAX_POLL_INTERVAL_MS = 300_000

_MODES = {0: AcquireMode.FAIR, **{int(mode): mode for mode in AcquireMode}}


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


def _software(version: str) -> str:
    """The SDK gives its version alone, other clients what they like."""
    return f"sharecoord-sdk {version}" if version[:1].isdecimal() else version


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
        client_id=check_text("client_id", join.client_id, CLIENT_ID_CHARACTERS_MAX),
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
        software=software_of(_software(join.sdk_version)),
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
