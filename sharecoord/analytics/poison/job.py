"""The poison job: reads events, writes seven tables, says what fails and what it costs.

On a cluster as `fairness.job`; one JSON object per group goes to stdout.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, ClassVar, Final

from sharecoord.analytics import jobs
from sharecoord.analytics.poison.settings import PoisonSettings
from sharecoord.eventlog.rollups import ATTEMPTS, TROUBLES

if TYPE_CHECKING:
    from sharecoord.analytics.progress import Steps
    from sharecoord.analytics.rollups import EventLog

NAME: Final = "sharecoord poison"
DELIVERIES: Final = "poison_deliveries"
RECORDS: Final = "poison_records"
KEYS: Final = "poison_keys"
REASONS: Final = "poison_reasons"
MEMBERS: Final = "poison_members"
EXPIRIES: Final = "poison_expiries"
GROUPS: Final = "poison_groups"
JSON_KEYS: Final = (
    *("group", "attempts", "failed", "failed_share", "released", "rejected", "expired", "departed"),
    *("accepted", "archived", "dead_lettered", "delivery_mean", "delivery_max", "poison_keys"),
    *("worst_keys", "top_reason", "spent_hours", "wasted_hours", "wasted_share", "complete"),
)


class PoisonResult(jobs.JobResult):
    """Rows of `transform.groups`, in order of the group ids."""

    json_keys: ClassVar[tuple[str, ...]] = JSON_KEYS


def _write(log: EventLog, out: str, settings: PoisonSettings, steps: Steps) -> PoisonResult:
    """The tables, each from what was written or kept before."""
    from sharecoord.analytics.attempts import attempts
    from sharecoord.analytics.census import beside, census_of, words
    from sharecoord.analytics.poison import transform

    made, counted = log.summed(ATTEMPTS, attempts), census_of(log, words)
    failed = transform.troubles(log.pieces(TROUBLES, lambda events: events))
    keys = transform.keys(failed)
    worst_records = transform.top(transform.records(failed), settings.top)
    worst_keys = transform.top(keys, settings.top)
    with jobs.persisted(made, failed, counted, keys, worst_records, worst_keys):
        steps.at(1, "attempts")
        deliveries = jobs.save(transform.deliveries(made), out, DELIVERIES)
        members = jobs.save(transform.members(made), out, MEMBERS)
        jobs.save(transform.expiries(members), out, EXPIRIES)
        steps.at(2, "failures")
        jobs.save(transform.worst_records(worst_records, failed), out, RECORDS)
        jobs.save(transform.worst_keys(worst_keys, failed), out, KEYS)
        reasons = jobs.save(transform.reasons(failed), out, REASONS)
        steps.at(3, "groups")
        rows = transform.groups(deliveries, members, keys, reasons, counted)
        groups = jobs.save(rows, out, GROUPS)
        return PoisonResult(jobs.listed(groups, "group_id"), **beside(counted))


def _add_top(made: argparse.ArgumentParser) -> None:
    made.add_argument("--top", type=int, default=20, help="Records and keys per group.")


JOB: Final = jobs.Job(
    NAME,
    "What fails in share groups, and what it costs.",
    _write,
    PoisonSettings,
    first_step="attempts",
    steps=3,
    options=_add_top,
    chosen=lambda given: PoisonSettings(top=given.top),
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
