"""What the coordinator knows reaches an operator's program, figure by figure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from sharecoord_sdk._admin.calls import MAPPER as CLIENT
from sharecoord_sdk.admin import MemberDescription, PartitionOffsets

from sharecoord.api.grpc.admin_service import MAPPER as COORDINATOR
from sharecoord.runtime.admin.configs import ConfigChange
from sharecoord.runtime.admin.descriptions import MemberView, PartitionView
from sharecoord.wire import admin_service_pb2 as pb

SPECIAL: dict[str, Any] = {
    "topic_id": "0123456789abcdef" * 2,
    "pause": None,
    "assignment": {"orders": (0, 2), "bills": ()},
}


@pytest.mark.parametrize(
    ("view", "message", "description"),
    [
        (PartitionView, pb.PartitionOffsets, PartitionOffsets),
        (MemberView, pb.MemberDescription, MemberDescription),
    ],
)
def test_each_figure_comes_through(view: Any, message: Any, description: Any) -> None:
    kinds = {field.name: str(field.type) for field in dataclasses.fields(view)}
    values = {
        name: SPECIAL.get(name, name if kind == "str" else number)
        for number, (name, kind) in enumerate(kinds.items(), 1)
    }
    found = CLIENT.read(description, COORDINATOR.answer(message, view(**values)))
    assert dataclasses.asdict(found) == values


def test_what_the_audit_trail_needs_alone_is_not_answered() -> None:
    answer = COORDINATOR.answer(pb.AlterGroupConfigsResponse, ConfigChange({"a": "1"}, {"a": "2"}))
    assert answer == pb.AlterGroupConfigsResponse()
