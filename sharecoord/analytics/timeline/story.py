"""Events in words, one sentence per event, in the order in which they happened."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sharecoord.core.dispatch.pauses import OPERATOR
from sharecoord.eventlog.schema import EventKind, GroupEvent, RangeEvent

Event = Mapping[str, Any]
"""A row of the event log; `time` in microseconds since the epoch, or with a time zone."""

Teller = Callable[[Event], str]


class Step(NamedTuple):
    """An event of a story, told in a sentence."""

    time: datetime
    """UTC."""
    text: str
    event: Event


def story(events: Iterable[Event]) -> list[Step]:
    """Tells events in order, each once, however many files it is in.

    Changes of one share-partition are in order of their sequence, which does not depend on clocks;
    other events in order of time.
    """
    once = {_identity(event): event for event in events}
    steps = [Step(time_of(event), sentence(event), event) for event in once.values()]
    partitions = {_place(step.event) for step in steps if step.event["kind"] == EventKind.RANGE}
    if len(partitions) == 1 and all(step.event["kind"] == EventKind.RANGE for step in steps):
        steps.sort(key=lambda step: (step.event["change_sequence"], step.event["first_offset"]))
    else:
        steps.sort(key=lambda step: (step.time, step.event.get("change_sequence") or 0))
    return steps


def time_of(event: Event) -> datetime:
    """The time of an event, in UTC."""
    time = event["time"]
    if isinstance(time, datetime):
        return time.astimezone(UTC)
    return datetime.fromtimestamp(time / 1_000_000, tz=UTC)


def sentence(event: Event) -> str:
    """The event in a sentence."""
    if event["kind"] == EventKind.GROUP:
        return _group_sentence(event)
    if event["kind"] == EventKind.LOST:
        return f"{event['records']} events are missing from here on: the writer could not keep up"
    return _RANGE_SENTENCES[RangeEvent(event["event"])](event)


def _identity(event: Event) -> tuple[Any, ...]:
    """Values that two events have in common only when they are the same."""
    names = ("kind", "event", "change_sequence", "first_offset", "last_offset", "member_id")
    values = tuple(event.get(name) for name in names)
    return (*_place(event), time_of(event), event.get("coordinator_id"), *values)


def _place(event: Event) -> tuple[Any, ...]:
    return tuple(event.get(name) for name in ("group_id", "topic", "topic_id", "partition"))


def _who(event: Event) -> str:
    member, client = event.get("member_id") or "nobody", event.get("client_id")
    return f"{member} ({client})" if client and client != member else str(member)


def _span(ms: float | None) -> str:
    """A length of time as people write it."""
    if ms is None:
        return "a time that is not known"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1_000:.1f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.1f} min"
    return f"{ms / 3_600_000:.1f} h"


def _acquired(event: Event) -> str:
    text = f"handed to {_who(event)}, delivery {event['delivery_count']}"
    if event.get("available_ms") is not None:
        text += f", after it had waited for {_span(event['available_ms'])}"
    return f"{text}; locked for {_span(event.get('lock_ms'))}{_among(event)}"


def _among(event: Event) -> str:
    """The offsets of the range, when it has more than one record."""
    first, last = event["first_offset"], event["last_offset"]
    return "" if first == last else f" (with offsets {first} to {last})"


def _ended(what: str) -> Teller:
    def tell(event: Event) -> str:
        text = f"{what.format(who=_who(event))} after {_span(event.get('held_ms'))}"
        if event.get("work_us") is not None:
            each_ms = event["work_us"] / 1_000 / max(event.get("records") or 1, 1)
            text += f", {_span(each_ms)} of work"
        return text + _became(event) + _among(event)

    return tell


def _reason(event: Event) -> str:
    return f": {event['reason']}" if event.get("reason") else ""


def _became(event: Event) -> str:
    """The state of the record after a failure, and the reason."""
    state, reason = event.get("state"), _reason(event)
    if state == "available":
        wait = f" in {_span(event['delay_ms'])}" if event.get("delay_ms") else ""
        return f"{reason}; available again{wait}"
    if state == "archiving":
        return f"{reason}; on its way to the dead-letter topic"
    return f"{reason}; archived, never delivered again" if state == "archived" else ""


def _plain(text: str) -> Teller:
    def tell(event: Event) -> str:
        told = text.format(who=_who(event), first=event["first_offset"])
        return told + _reason(event) + _among(event)

    return tell


def _forced(text: str) -> Teller:
    def tell(event: Event) -> str:
        by = event.get("reason") or OPERATOR
        return text.format(by="an operator" if by == OPERATOR else by) + _among(event)

    return tell


_RANGE_SENTENCES = {
    RangeEvent.ENTERED: _plain("read, and held back until earlier records of its key are done"),
    RangeEvent.ACQUIRED: _acquired,
    RangeEvent.RENEWED: _ended("{who} renewed its lock"),
    RangeEvent.ACCEPTED: _ended("{who} accepted it"),
    RangeEvent.RELEASED: _ended("{who} released it"),
    RangeEvent.REJECTED: _ended("{who} rejected it"),
    RangeEvent.RETURNED: _ended("handed back unseen by {who}, the delivery does not count"),
    RangeEvent.EXPIRED: _ended("the lock of {who} ended by itself"),
    RangeEvent.DEPARTED: _ended("{who} left or its session ended"),
    RangeEvent.WORN_OUT: _plain("archived: the delivery limit is below its count"),
    RangeEvent.GAP: _plain("there is no record (compacted, aborted or a control record)"),
    RangeEvent.LOG_START: _plain("archived: the log's start passed it"),
    RangeEvent.TRUNCATED: _plain("the log lost everything from offset {first} on"),
    RangeEvent.RELEASED_BY_ADMIN: _forced("released by {by}"),
    RangeEvent.ARCHIVED_BY_ADMIN: _forced("archived by {by}"),
    RangeEvent.FINISHED_BY_ADMIN: _forced("taken for done by {by}"),
    RangeEvent.RESET: _plain("the group's start offset was set to {first}"),
    RangeEvent.DEAD_LETTERED: _plain("its dead letter is safe"),
}

_GROUP_SENTENCES = {
    GroupEvent.JOINED: "{who} joined",
    GroupEvent.LEFT: "{who} left",
    GroupEvent.SESSION_ENDED: "the session of {who} ended",
    GroupEvent.PAUSED: "{what} was paused",
    GroupEvent.RESUMED: "{what} was resumed",
    GroupEvent.CONFIGURED: "settings of the group changed",
    GroupEvent.KEYS_BLOCKED: "keys were blocked",
    GroupEvent.KEYS_UNBLOCKED: "keys were unblocked",
    GroupEvent.DELETED: "deleted, with its offsets",
    GroupEvent.OWNED: "{coordinator} took the share-partition over",
}


def _what(event: Event) -> str:
    """The member, group, topic or partition that was paused or resumed."""
    if event.get("member_id"):
        return _who(event)
    topic, partition = event.get("topic"), event.get("partition")
    if not topic:
        return "the group"
    return f"topic {topic}" if partition is None else f"{topic}[{partition}]"


def _group_sentence(event: Event) -> str:
    text = _GROUP_SENTENCES[GroupEvent(event["event"])].format(
        who=_who(event),
        what=_what(event),
        coordinator=event.get("coordinator_id") or "a coordinator",
    )
    return text + _reason(event)
