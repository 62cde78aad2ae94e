"""What members say that they are is kept and shown, whatever it is, if it is plain and short."""

from __future__ import annotations

import pytest

from sharecoord.api.checks import SOFTWARE_CHARACTERS_MAX
from sharecoord.api.grpc.validation import join_command
from sharecoord.security.principals import Caller
from sharecoord.wire import PROTOCOL_VERSION
from sharecoord.wire import share_service_pb2 as service


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("0.1.0", "sharecoord-sdk 0.1.0"),
        ("my-client 3", "my-client 3"),
        ("", ""),
        ("\x1b[31m", ""),
        ("x" * 1_000, "x" * SOFTWARE_CHARACTERS_MAX),
    ],
)
def test_software_of_members(told: str, kept: str) -> None:
    join = service.Join(
        group_id="g",
        member_id="m",
        topics=["orders"],
        protocol_version=PROTOCOL_VERSION,
        sdk_version=told,
    )
    _, command = join_command(join, Caller(address="127.0.0.1:1"))
    assert command.software == kept
