"""`python -m sharecoord_sdk.worker MODULE:WORKER`: runs a worker, or shows how it is wired.

A dry run imports the worker as a run does, prints what it would do, and asks the coordinator
whether it could: it never joins the group.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sharecoord_sdk._core.errors import IllegalStateException, KafkaException
from sharecoord_sdk.admin import AdminClient, AdminError, ResetTo
from sharecoord_sdk.worker import Worker

OK, FAILED, USAGE = 0, 1, 2
"""Exit codes."""

_SHOWN: Final = (
    "share.auto.offset.reset",
    "share.record.lock.duration.ms",
    "share.renew.acknowledge.enable",
    "share.delivery.count.limit",
    "share.ordering",
    "share.checkpoint.max.bytes",
    "errors.deadletterqueue.topic.name",
)
"""Settings of a group that matter to handlers."""


# -- what is wired --------------------------------------------------------------------------------


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"worker of group {found['group']} at {', '.join(found['coordinators'])}"
        f" (client {found['client']})"
    )
    names = ("concurrency", "renew_max_s", "drain_timeout_s", "tracing")
    yield "  " + ", ".join(f"{name} {_shown(found[name])}" for name in names)
    if found["middleware"]:
        yield "  middleware, outermost first: " + ", ".join(found["middleware"])
    for handler in found["handlers"]:
        rest = {k: v for k, v in handler.items() if k not in ("topic", "handler", "kind", "takes")}
        more = "".join(f", {name} {_shown(value)}" for name, value in rest.items())
        yield (
            f"  topic {handler['topic']}: {handler['handler']}, {handler['kind']},"
            f" takes {handler['takes']}{more}"
        )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- what the coordinator says --------------------------------------------------------------------


def checked(worker: Worker) -> dict[str, Any]:
    """Asks the coordinator; nothing is changed, nobody joins.

    Returns:
        `coordinator`, `settings`, `topics` (name to partitions) as far as they are known, and
        `problems`: sentences; empty = a run would work.
    """
    found: dict[str, Any] = {"problems": []}
    if not worker._handlers:
        found["problems"].append("no handler: @worker.handler(topic) registers one")
    try:
        with AdminClient(conf_of_admin(worker)) as admin:
            _ask(worker, admin, found)
    except AdminError as error:
        found["problems"].append(f"{error.reason}: {error.message}")
    return found


def conf_of_admin(worker: Worker) -> dict[str, Any]:
    """The worker's configuration, for a client without a loop."""
    callback: Any = worker._conf.get("oauth_cb")
    if not inspect.iscoroutinefunction(callback):
        return worker._conf
    return {**worker._conf, "oauth_cb": lambda text: asyncio.run(callback(text))}


def _ask(worker: Worker, admin: AdminClient, found: dict[str, Any]) -> None:
    group, topics = worker._config.group_id, list(worker._handlers)
    coordinator = admin.describe_coordinator()
    found["coordinator"] = {
        "id": coordinator.coordinator_id,
        "version": coordinator.version,
        "kafka": coordinator.kafka_bootstrap_servers,
    }
    entries = {entry.name: entry for entry in admin.describe_group_configs(group)}
    found["settings"] = {
        name: {"value": entries[name].value, "source": entries[name].source.value}
        for name in _SHOWN
        if name in entries
    }
    found["topics"] = {}
    if topics:
        # A dry run of a reset names each partition, or says what is missing.
        for each in admin.reset_offsets(group, ResetTo.latest(), topics, dry_run=True, force=True):
            if each.error is None:
                found["topics"][each.topic] = found["topics"].get(each.topic, 0) + 1
            else:
                found["problems"].append(f"topic {each.topic}: {each.error.message}")
    dead = found["settings"].get("errors.deadletterqueue.topic.name", {}).get("value")
    if dead and dead in topics:
        text = f"topic {dead}: it takes this group's own dead letters; read it with another group"
        found["problems"].append(text)


def _checked_lines(found: Mapping[str, Any]) -> Iterator[str]:
    if "coordinator" in found:
        here = found["coordinator"]
        yield f"coordinator {here['id']}, version {here['version']}, Kafka at {here['kafka']}"
    for name, entry in found.get("settings", {}).items():
        yield f"  {name} = {entry['value'] or '(none)'} ({entry['source']})"
    for topic, partitions in found.get("topics", {}).items():
        yield f"  topic {topic}: {partitions} partitions"
    for problem in found["problems"]:
        yield f"problem: {problem}"
    yield "a run would not work" if found["problems"] else "a run would work"


# -- the command ----------------------------------------------------------------------------------


class _UsageError(Exception):
    """A command line that can not be carried out; the text says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 all right, 1 it failed, 2 wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m sharecoord_sdk.worker",
        description="Runs a sharecoord worker, or shows how it is wired.",
    )
    where = "a Worker in a module; WORKER is `worker` if left out"
    dry = "print the wiring and ask the coordinator, do not join"
    parser.add_argument("worker", metavar="MODULE:WORKER", help=where)
    parser.add_argument("--dry-run", action="store_true", help=dry)
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="of a dry run"
    )
    given = parser.parse_args(arguments)
    try:
        worker = find_worker(given.worker)
    except _UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return USAGE
    if given.dry_run:
        return _dry_run(worker, as_json=given.output == "json")
    try:
        worker.run()
    except (KafkaException, IllegalStateException) as error:
        sys.stderr.write(f"error: {error}\n")
        return FAILED
    return OK


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _dry_run(worker: Worker, *, as_json: bool) -> int:
    wired = worker.describe()
    if not as_json:
        # Before the coordinator is asked, which may take its time.
        _say("\n".join(_lines(wired)))
    found = checked(worker)
    if as_json:
        _say(json.dumps({**wired, **found}, indent=2))
    else:
        _say("\n".join(_checked_lines(found)))
    return FAILED if found["problems"] else OK


def find_worker(place: str) -> Worker:
    """Imports a module and finds a worker in it.

    Args:
        place: `MODULE:WORKER`; WORKER may be a function without parameters that makes one.

    Raises:
        _UsageError: There is none.
    """
    module_name, _, name = place.partition(":")
    name = name or "worker"
    if not module_name or module_name.startswith("."):
        raise _UsageError(f"{place!r} is not MODULE:WORKER")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            # The module is there, and misses another one.
            raise
        raise _UsageError(f"there is no module {module_name!r} here") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise _UsageError(f"module {module_name!r} has no {name!r}; give MODULE:WORKER")
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Worker):
        found = found()
    if not isinstance(found, Worker):
        raise _UsageError(f"{place} is {type(found).__name__}, not a Worker")
    return found


if __name__ == "__main__":
    sys.exit(main())
