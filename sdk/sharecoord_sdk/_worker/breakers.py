"""The circuit breakers of a worker's handlers: when topics are paused, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .gates import BreakerState
from .leases import Part, WorkerLeases
from .line import Line


class Breakers:
    """All of them.

    Args:
        hands: Where the lines of the handlers are.
    """

    def __init__(self, hands: WorkerLeases) -> None:
        self._hands = hands
        self._lines = [line for line in hands.lines.values() if line.breaker is not None]

    def _states(self) -> list[tuple[Line, BreakerState]]:
        return [(line, line.breaker) for line in self._lines if line.breaker is not None]

    @property
    def probe_at(self) -> float:
        """When the next probe is due, or infinity."""
        return min((state.probe_at for _, state in self._states()), default=float("inf"))

    @property
    def any_holds(self) -> bool:
        """Whether one is open."""
        return any(state.state == BreakerState.OPEN for _, state in self._states())

    def states(self) -> dict[str, str]:
        """`closed`, `open` or `probing`, by topic."""
        return {line.handler.topic: state.state for line, state in self._states()}

    def finished(
        self, line: Line, parts: Sequence[Part], error: BaseException | None, now: float
    ) -> str:
        """A handler ended; what there is to say when its breaker changed."""
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
        """Lets one record try where it is time; what there is to say."""
        texts: list[str] = []
        for line, state in self._states():
            if now >= state.probe_at:
                state.probe()
                texts.append(f"the breaker of handler {line.handler.name} lets one record try")
        return texts

    def paused(self, assigned: Mapping[str, Sequence[int]]) -> set[tuple[str, int]]:
        """The partitions of topics whose breaker is open.

        Args:
            assigned: The partitions of each topic, as far as the coordinator named them.
        """
        found: set[tuple[str, int]] = set()
        for line, state in self._states():
            if state.state == BreakerState.OPEN:
                topic = line.handler.topic
                found |= {(topic, partition) for partition in assigned.get(topic, ())}
                found |= {
                    (topic, lease.columns.partition)
                    for lease in self._hands.leases
                    if lease.line is line
                }
        return found
