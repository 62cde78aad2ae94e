"""Structured logs: a sentence for people, fields for machines, one event per line."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from sharecoord.core.changes import PartitionKey


def name_partitions(
    _: object, __: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Replaces share-partitions by their names: `partition` by three fields, others by texts.

    So all lines about a share-partition are found by group, topic and partition.
    """
    for name, value in list(event_dict.items()):
        if isinstance(value, PartitionKey):
            if name == "partition":
                event_dict.update(group=value.group_id, topic=value.name, partition=value.partition)
            else:
                event_dict[name] = str(value)
        elif isinstance(value, (list, tuple, set, frozenset)):
            event_dict[name] = [str(v) if isinstance(v, PartitionKey) else v for v in value]
    return event_dict


def configure_logging(*, level: str, json: bool) -> None:
    """Sets up structlog for the process; lines go to standard error only."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            name_partitions,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
