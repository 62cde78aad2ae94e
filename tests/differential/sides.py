"""Those that are compared: Kafka's own share groups, and a coordinator by either of its doors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from sharecoord_sdk import AdminClient
from sharecoord_sdk.admin import ResetTo

from sharecoord.devenv.topics import Topics
from tests.differential.kafka_offsets import (
    Place,
    alter_share_group_offsets,
    share_group_offsets,
)
from tests.differential.members import (
    JAVA,
    NATIVE,
    OURS,
    ChildMember,
    LocalMember,
    Member,
    java_member,
)
from tests.support import eventually

WAIT_S = 30.0


class UnseenError(Exception):
    """A member's client has fetched what its program will never see, so counts say nothing."""


class Side(Protocol):
    """What a script needs besides members; offsets are by partition of one topic."""

    @property
    def name(self) -> str:
        """For transcripts."""

    @property
    def module(self) -> str:
        """Whose `ShareConsumer` reads here."""

    @property
    def address(self) -> str:
        """`host:port` for members."""

    def configure(self, group: str, settings: Mapping[str, str]) -> None:
        """Sets settings of a group."""

    def offsets(self, group: str, topic: str) -> dict[int, Place]:
        """Start offset and lag of each partition that has a start offset."""

    @property
    def tells_start_at_once(self) -> bool:
        """Whether a partition has a start offset before anybody has got a record of it."""

    def agrees(self, found: Place, paper: Place, gaps: int) -> bool:
        """Whether start offset and lag are those that a script says, as this side tells them.

        Args:
            found: What it says.
            paper: What the script says.
            gaps: How many offsets of the partition are without a record.
        """

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Moves the start offsets of a group whose members have left."""

    def holds_only(self, group: str, member: str, count: int) -> bool:
        """Whether a member that was told to `hold` has got no more than so many records.

        Raises:
            UnseenError: It has more, and can not hand them back.
        """


class KafkaSide(NamedTuple):
    """A broker of Kafka 4.3 or newer."""

    address: str
    name: str = "kafka"
    module: str = NATIVE

    def configure(self, group: str, settings: Mapping[str, str]) -> None:
        Topics(self.address).set_group_config(group, settings)

    def offsets(self, group: str, topic: str) -> dict[int, Place]:
        found = share_group_offsets(self.address, group)
        return {n: place for (t, n), place in found.items() if t == topic and place.start >= 0}

    @property
    def tells_start_at_once(self) -> bool:
        # It is written with the first change of a record's state.
        return False

    def agrees(self, found: Place, paper: Place, gaps: int) -> bool:
        # The start that is written with an acknowledgement is the one before it, so it trails; and
        # offsets without a record count until some client has reported them.
        return found.start <= paper.start and 0 <= found.lag - paper.lag <= gaps

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        asked = {(topic, number): offset for number, offset in offsets.items()}

        def done() -> bool:
            # Refused while the last member is on its way out.
            alter_share_group_offsets(self.address, group, asked)
            return True

        eventually(done, WAIT_S, what=f"reset of {group}")

    def holds_only(self, group: str, member: str, count: int) -> bool:
        return True


class OurSide(NamedTuple):
    """A coordinator."""

    address: str
    name: str = "sharecoord"
    module: str = OURS

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address})

    def configure(self, group: str, settings: Mapping[str, str]) -> None:
        with self._admin() as admin:
            admin.alter_group_configs(group, dict(settings))

    def offsets(self, group: str, topic: str) -> dict[int, Place]:
        with self._admin() as admin:
            (found,) = admin.describe_groups([group])
        if found.error is not None:
            raise found.error
        return {
            each.partition: Place(each.start_offset, -1 if each.lag is None else each.lag)
            for each in found.offsets
            if each.topic == topic and each.start_offset is not None
        }

    @property
    def tells_start_at_once(self) -> bool:
        return True

    def agrees(self, found: Place, paper: Place, gaps: int) -> bool:
        return found == paper

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        to = ResetTo.offsets({(topic, number): offset for number, offset in offsets.items()})
        with self._admin() as admin:
            results = admin.reset_offsets(group, to, topics={topic: sorted(offsets)})
        assert [each.error for each in results] == [None] * len(offsets), results

    def holds_only(self, group: str, member: str, count: int) -> bool:
        with self._admin() as admin:
            (found,) = admin.describe_groups([group])
        held = [m.acquired_records for m in found.members if m.client_id == member]
        return all(each <= count for each in held)


class PortSide(NamedTuple):
    """Kafka's own clients at the Kafka port of a coordinator."""

    address: str
    ours: OurSide
    """The same coordinator by its other door, for operators."""
    module: str = NATIVE
    name: str = "port"

    def configure(self, group: str, settings: Mapping[str, str]) -> None:
        self.ours.configure(group, settings)

    def offsets(self, group: str, topic: str) -> dict[int, Place]:
        """As Kafka's tools ask for them."""
        found = share_group_offsets(self.address, group)
        return {n: place for (t, n), place in found.items() if t == topic and place.start >= 0}

    @property
    def tells_start_at_once(self) -> bool:
        return self.ours.tells_start_at_once

    def agrees(self, found: Place, paper: Place, gaps: int) -> bool:
        return self.ours.agrees(found, paper, gaps)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self.ours.reset(group, topic, offsets)

    def holds_only(self, group: str, member: str, count: int) -> bool:
        # Kafka's clients hand nothing back: what a fetch under way has brought is theirs. Java's
        # may have one under way though its program does not poll: a poll's wish for records that
        # its network thread reads after the answer to the fetch before is a fetch of its own.
        if self.module.startswith(JAVA) and not self.ours.holds_only(group, member, count):
            raise UnseenError(f"{member} holds more than the {count} records that it has seen")
        return True


def join(
    side: Side,
    group: str,
    name: str,
    topic: str,
    *,
    partitions: int = 1,
    child: bool = False,
    reads_ahead: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Member:
    """A new, subscribed member.

    Args:
        side: Where.
        group: The group.
        name: Its client id; names it in the group's description.
        topic: What it reads.
        partitions: How many partitions that topic has.
        child: Whether it lives in a process of its own, so that it can be killed.
        reads_ahead: Whether its client may fetch more while the program has records. Kafka's Java
            client does, and of a program that falls silent nobody knows what was fetched.
        config: Settings of its client; explicit acknowledgement unless they say otherwise.
    """
    base = {
        "bootstrap.servers": side.address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    own = {**base, **(config or {})}
    if side.module.startswith(JAVA):
        own["share.acquire.mode"] = "batch_optimized" if reads_ahead else "record_limit"
        return java_member(side.module.removeprefix(JAVA), name, topic, own, child=child)
    kind = ChildMember if child else LocalMember
    return kind(side.module, name, topic, partitions, own)
