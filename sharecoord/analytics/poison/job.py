"""The poison job: reads events, writes seven tables, says what fails and what it costs.

It runs on a cluster as `fairness.job`; one JSON object per group goes to stdout.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

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


def _write(
    log: EventLog, out: str | None, settings: PoisonSettings, steps: Steps
) -> jobs.JobResult:
    """Writes the tables, each from those before and from kept frames; returns the groups."""
    from sharecoord.analytics.attempts import attempts
    from sharecoord.analytics.census import census_of_log, change_bits, result_fields
    from sharecoord.analytics.poison import transform

    attempt_rows = log.summed_rows(ATTEMPTS, attempts)
    census_rows = census_of_log(log, change_bits)
    troubles = transform.troubles(log.partial_rows(TROUBLES, lambda events: events))
    keys = transform.keys(troubles)
    worst_records = transform.top(transform.records(troubles), settings.top)
    worst_keys = transform.top(keys, settings.top)
    with jobs.persisted(attempt_rows, troubles, census_rows, keys, worst_records, worst_keys):
        steps.next()
        deliveries = jobs.save(transform.deliveries(attempt_rows), out, DELIVERIES)
        members = jobs.save(transform.members(attempt_rows), out, MEMBERS)
        jobs.save(transform.expiries(members), out, EXPIRIES)
        steps.next()
        jobs.save(transform.worst_records(worst_records, troubles), out, RECORDS)
        jobs.save(transform.worst_keys(worst_keys, troubles), out, KEYS)
        reasons = jobs.save(transform.reasons(troubles), out, REASONS)
        steps.next()
        rows = transform.groups(deliveries, members, keys, reasons, census_rows)
        groups = jobs.save(rows, out, GROUPS)
        rows_of_groups = jobs.listed(groups, "group_id")
        return jobs.JobResult(rows_of_groups, JSON_KEYS, **result_fields(census_rows))


def _add_top(options: argparse.ArgumentParser) -> None:
    options.add_argument("--top", type=int, default=20, help="Records and keys per group.")


JOB: Final = jobs.Job(
    NAME,
    "What fails in share groups, and what it costs.",
    _write,
    PoisonSettings,
    ("attempts", "failures", "groups"),
    add_options=_add_top,
    chosen=lambda given: PoisonSettings(top=given.top),
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
