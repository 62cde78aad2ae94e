"""Releases before whole batches: what they and this one make of each other's messages.

Their messages are those of today without the fields that came with whole batches and since.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from sharecoord_sdk._core import frames

from sharecoord.api.grpc.validation import join_command
from sharecoord.core.fleet.peering import MemberUp
from sharecoord.core.states import AcquireMode
from sharecoord.security.principals import Caller
from sharecoord.wire import peer_codec
from sharecoord.wire import peer_service_pb2 as peer
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire import share_types_pb2 as types

LATER = {
    ("Join", "opens"),
    ("MemberUp", "opens"),
    ("MemberUp", "principal"),
    ("RecordBatch", "whole_batches"),
}
"""Fields that an older release does not know, by their messages."""


@cache
def older_pool() -> descriptor_pool.DescriptorPool:
    """The messages of an older release."""
    pool = descriptor_pool.DescriptorPool()
    found = set()
    for module in (types, service, peer):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in list(message.field):
                if (message.name, field.name) in LATER:
                    found.add((message.name, field.name))
                    message.field.remove(field)
        pool.Add(file)
    assert found == LATER
    return pool


def older(name: str) -> Any:
    """The class of a message of an older release."""
    return message_factory.GetMessageClass(older_pool().FindMessageTypeByName(name))


def understood(sent: Message) -> Any:
    """What an older release has of a message of this one."""
    received = older(sent.DESCRIPTOR.full_name).FromString(sent.SerializeToString())
    received.DiscardUnknownFields()
    return received


def a_join() -> service.Join:
    """A member that opens batches."""
    return service.Join(
        group_id="g", member_id="m", topics=["orders"], protocol_version=1, max_poll_records=7,
        credit=types.Credit(records_total=9, bytes_total=10), opens=[0, 3, 4],  # type: ignore[list-item]
    )  # fmt: skip


UP = MemberUp(
    4, "g", "m", 9, "client", "h", ("orders",), AcquireMode.FAIR, 7, frozenset({("orders", 1)}), [],
    frozenset({0, 3}), "User:alice",
)  # fmt: skip


def test_an_older_coordinator_has_all_of_a_join_but_what_the_member_opens() -> None:
    sent = a_join()
    received = understood(sent)
    sent.ClearField("opens")
    assert received.SerializeToString() == sent.SerializeToString()


def test_an_older_owner_has_all_of_a_member_but_what_it_opens_and_who_it_is() -> None:
    sent = peer_codec.gateway_message([UP])
    received = understood(sent)
    sent.items[0].member_up.ClearField("opens")
    sent.items[0].member_up.ClearField("principal")
    assert received.SerializeToString() == sent.SerializeToString()


def test_of_an_older_member_it_is_known_that_it_opens_nothing() -> None:
    said = understood(a_join()).SerializeToString()
    _, command = join_command(service.Join.FromString(said), Caller())
    assert (command.max_poll_records, command.opens) == (7, frozenset())


def test_of_a_member_of_an_older_gateway_nobody_knows_who_it_is_and_it_opens_nothing() -> None:
    said = understood(peer_codec.gateway_message([UP])).SerializeToString()
    (up,) = peer_codec.gateway_items(peer.GatewayMessage.FromString(said))
    assert isinstance(up, MemberUp)
    assert (up.max_poll_records, up.opens, up.principal) == (7, frozenset(), "")


@pytest.mark.parametrize("value_bytes", [10, frames.APART_BYTES_MIN])
def test_what_an_older_coordinator_sends_is_read_as_columns(value_bytes: int) -> None:
    sent = older("sharecoord.v1.ConsumeResponse")()
    sent.batches.add(record_count=1, values=[b"v" * value_bytes], timestamps_ms=[1_000])
    frame = frames.read(sent.SerializeToString())
    assert [list(each) for each in frame.whole] == [[]]
    (batch,) = frame.response.batches
    assert list(batch.values) == [b"v" * value_bytes]


def test_an_older_gateway_passes_the_frame_of_an_owner_on_as_it_is() -> None:
    """It knows the frame as bytes, and does not look into them."""
    relayed = peer.OwnerMessage()
    relayed.items.add().deliver.frame = b"\x00 whatever a member was sent"
    assert understood(relayed).items[0].deliver.frame == relayed.items[0].deliver.frame
