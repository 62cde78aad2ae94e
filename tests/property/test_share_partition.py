"""The share-partition equals its twin: unordered, in order, and with ranges left to the store."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from sharecoord.core.states import Ordering
from sharecoord.core.window.window import NEVER_MS
from tests.invariants import check_chains
from tests.property.conversions import from_row
from tests.property.machine import SharePartitionMachine
from tests.property.oracle import AVAILABLE, UNFINISHED
from tests.support import columns_of

EXAMPLES = 120
EXAMPLES_LONG = 5_000


class KeyOrderMachine(SharePartitionMachine):
    """Groups in key order."""

    orderings = (Ordering.KEY,)

    @invariant()
    def keys_are_kept(self) -> None:
        """One member holds a key, and nothing of it overtakes."""
        if hasattr(self, "real"):
            check_chains(self.real)
            self.keys_are_kept_by_the_twin()

    def keys_are_kept_by_the_twin(self) -> None:
        """The same as a sentence about any two records of one key."""
        unfinished = [(o, r) for o, r in self.twin.records.items() if r.state in UNFINISHED]
        for earlier, before in unfinished:
            for later, after in unfinished:
                key = self.twin.key(after)
                if earlier < later and key and self.twin.key(before) == key:
                    assert after.state is AVAILABLE or before.member == after.member

    @rule(blocked=st.frozensets(st.integers(1, 2)))
    def keys_are_blocked(self, blocked: frozenset[int]) -> None:
        """An operator blocks keys, and no others."""
        if self.real.settings.ordering is Ordering.KEY:
            changed = self.real.settings._replace(blocked_keys=blocked)
            self.real.settings = self.twin.settings = changed

    def teardown(self) -> None:
        """A blocked key holds nothing up but itself."""
        if hasattr(self, "real"):
            blocked = self.real.settings.blocked_keys
            changed = self.real.settings._replace(record_locks_max=2_000)
            self.real.settings = self.twin.settings = changed
            self.work_off()
            left = [r for r in self.twin.records.values() if r.state in UNFINISHED]
            assert all(self.twin.key(record) in blocked for record in left)
            assert self.real.order.blocked_records == len(left)
        super().teardown()


class PartitionOrderMachine(KeyOrderMachine):
    """Groups in partition order."""

    orderings = (Ordering.PARTITION,)


class SwitchedOrderMachine(SharePartitionMachine):
    """Groups whose order is switched on and off under traffic."""

    orderings = tuple(Ordering)

    @rule(blocked=st.frozensets(st.integers(1, 2)))
    def keys_are_blocked(self, blocked: frozenset[int]) -> None:
        """Only order by key knows keys."""
        if self.real.settings.ordering is Ordering.KEY:
            changed = self.real.settings._replace(blocked_keys=blocked)
            self.real.settings = self.twin.settings = changed

    @rule(ordering=st.sampled_from(list(Ordering)))
    def order_changes(self, ordering: Ordering) -> None:
        """Records that entered before have no known key."""
        changed = self.real.settings._replace(ordering=ordering, blocked_keys=frozenset())
        self.real.settings = self.twin.settings = changed


class ParkingMachine(SharePartitionMachine):
    """Groups that leave delayed ranges to the store, all but a few."""

    kept = 1

    @rule(kept=st.sampled_from([0, 1, 3]))
    def keeps(self, kept: int) -> None:
        """How many stay from now on."""
        self.kept = kept

    def store(self) -> None:
        """After a commit ranges may go."""
        super().store()
        self.real.window.park(self.kept)
        assert self.real.window.delayed_ranges <= self.kept

    def bring(self) -> None:
        """Pages of the store, with ranges that are in memory among them."""
        window = self.real.window
        delayed = [from_row(row) for row in self.rows.values() if row.available_at_ms]
        delayed.sort(key=lambda found: (found[2].available_at_ms, found[0]))
        for at in range(0, len(delayed), 2):
            page, rest = delayed[at : at + 2], delayed[at + 2 :]
            before = window.parked.records
            window.unpark(*columns_of(page), rest[0][2].available_at_ms if rest else 0)
            assert window.parked.records <= before
            self.window_is_sound()
        assert not window.parked.records
        assert window.parked_from_ms == NEVER_MS

    @precondition(lambda self: self.rows)
    @rule()
    def bring_all(self) -> None:
        """Their time is near."""
        self.bring()


MACHINES = pytest.mark.parametrize(
    "machine",
    [
        SharePartitionMachine,
        ParkingMachine,
        KeyOrderMachine,
        PartitionOrderMachine,
        SwitchedOrderMachine,
    ],
    ids=["unordered", "parking", "key", "partition", "switched"],
)


def drive(machine: type[SharePartitionMachine], examples: int, steps: int) -> None:
    """Runs a machine so many times."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


@MACHINES
def test_equals_its_twin(machine: type[SharePartitionMachine]) -> None:
    """Unordered, in key order, in partition order, and switched between them."""
    drive(machine, EXAMPLES, 30)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@MACHINES
def test_equals_its_twin_for_long(machine: type[SharePartitionMachine]) -> None:
    """The same, many more and longer scripts."""
    drive(machine, EXAMPLES_LONG, 60)
