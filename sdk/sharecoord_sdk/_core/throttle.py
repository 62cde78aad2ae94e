"""`ThrottleEvent`: a name of the twin, for programs that import it."""

from __future__ import annotations


class ThrottleEvent:
    """What a `throttle_cb` of the twin is told. Here no broker throttles a consumer: none is made.

    Attributes:
        broker_name: The broker that throttled a request.
        broker_id: Its number.
        throttle_time: For how many seconds.
    """

    def __init__(self, broker_name: str, broker_id: int, throttle_time: float) -> None:
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.throttle_time = throttle_time

    def __str__(self) -> str:
        after_ms = int(self.throttle_time * 1000)
        return f"{self.broker_name}/{self.broker_id} throttled for {after_ms} ms"
