"""The circuit breakers of a worker's handlers: the topics that they pause, and their log lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .gates import BreakerState
from .leases import Part, WorkerLeases
from .line import Line


class Breakers:
    """All circuit breakers of a worker; `locks` has the lines of the handlers."""

    def __init__(self, locks: WorkerLeases) -> None:
        self._locks = locks
        self._states = [
            (line, line.breaker) for line in locks.lines.values() if line.breaker is not None
        ]

    @property
    def probe_at(self) -> float:
        return min((state.probe_at for _, state in self._states), default=float("inf"))

    @property
    def any_holds(self) -> bool:
        return any(state.state == BreakerState.OPEN for _, state in self._states)

    def states(self) -> dict[str, str]:
        """`closed`, `open` or `probing`, by topic."""
        return {line.handler.topic: state.state for line, state in self._states}

    def finished(
        self, line: Line, parts: Sequence[Part], error: BaseException | None, now: float
    ) -> str:
        """Notes the end of a handler; returns the log line when its breaker changed, else ""."""
        state = line.breaker
        assert state is not None, "asked before"
        is_probe = False
        for lease, start, stop in parts:
            if start <= lease.probe < stop:
                lease.probe = -1
                is_probe = True
        if not state.finished(error, now, is_probe=is_probe):
            return ""
        handler = line.handler
        if state.state == BreakerState.CLOSED:
            return f"the breaker of handler {handler.name} closes: {handler.topic} goes on"
        return (
            f"the breaker of handler {handler.name} opens: {handler.topic} is paused, one record"
            f" tries in {state.policy.probe_after_s:g} s"
        )

    def probe(self, now: float) -> list[str]:
        """Lets one record try where it is time; returns the log lines."""
        texts: list[str] = []
        for line, state in self._states:
            if now >= state.probe_at:
                state.probe()
                texts.append(f"the breaker of handler {line.handler.name} lets one record try")
        return texts

    def paused(self, assigned: Mapping[str, Sequence[int]]) -> set[tuple[str, int]]:
        """Partitions of topics whose breaker is open: assigned ones, and those with leases."""
        found: set[tuple[str, int]] = set()
        for line, state in self._states:
            if state.state == BreakerState.OPEN:
                topic = line.handler.topic
                found |= {(topic, partition) for partition in assigned.get(topic, ())}
                found |= {
                    (topic, lease.columns.partition)
                    for lease in self._locks.leases
                    if lease.line is line
                }
        return found
