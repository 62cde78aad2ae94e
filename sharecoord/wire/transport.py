"""Transport of gRPC connections: when a silent peer is given up."""

from __future__ import annotations


def keepalive(*, quiet_ms: int, answer_ms: int) -> list[tuple[str, int]]:
    """Options of a channel or server that gives up a silent peer after both times together.

    gRPC has two limits for the same answer. `keepalive_timeout_ms` holds when the socket takes the
    ping's bytes no more; while it takes them, as that of a stopped process does,
    `http2.ping_timeout_ms` counts, which is a minute by default.

    Args:
        quiet_ms: Time after the last sign of life until the peer is asked for one.
        answer_ms: Longest wait for its answer.
    """
    return [
        ("grpc.keepalive_time_ms", quiet_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.http2.ping_timeout_ms", answer_ms),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
