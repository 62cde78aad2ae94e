"""Offsets for the lag of other tools: `share.offsets.export.group` (design 9).

Kafka's own tools and exporters show log end - committed offset of a consumer group. For each
share-partition that this coordinator serves, an offset that gives the right lag is committed under
the name in the setting; nobody ever resumes from it. Its metadata reads
`sharecoord spso=OFFSET group="SHARE_GROUP"`, which tells our offsets from others'. The coordinators
of a fleet write the same mark, each for its own share-partitions.

Only durable offsets go out. The offsets under the name are read before the first write and then
each minute. As long as there are members, or offsets of somebody else, nothing is written. Offsets
that differ from ours (deleted by hand, or a late write of a former owner) are written anew.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import structlog

from sharecoord.config.setting import invalid_config
from sharecoord.core.changes import Place
from sharecoord.core.lag import consumer_offset
from sharecoord.errors import InternalError, SharecoordError
from sharecoord.ports import CommittedOffset, OffsetsExport
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState

if TYPE_CHECKING:
    from sharecoord.runtime.group.actor import GroupActor
    from sharecoord.runtime.kernel.context import Context

log = structlog.get_logger(__name__)

EXPORT_INTERVAL_S = 5.0
"""The interval of Kafka's own consumers (`auto.commit.interval.ms`): tools expect no more."""

LOOK_INTERVAL_S = 60.0
"""Interval of looks at a name, refused or not; also the longest wait after a failure."""

EXPORT_AGAIN_S = 86_400.0
"""Kafka forgets the offsets of groups without members some time after they were committed
(`offsets.retention.minutes`, a week by default): unchanged ones are committed again each day."""

WRITE_PARTITIONS_MAX = 400
"""Partitions of one request. Kafka stores it as one batch of at most 1 MiB by default, and an entry
holds two names of groups, in key and metadata, and one of a topic: 249 characters each, of up to 4
bytes in a group's."""

METADATA = re.compile(r'sharecoord spso=\d+ group=("(?:[^"\\]|\\.)*")')
"""The group name stands in quotation marks, as in JSON: confluent-kafka reads metadata up to some
NUL behind its end, so the text itself must say where it ends."""


class ExportFigures(NamedTuple):
    """The outcome of the last export of one share group."""

    group: str
    export_group: str
    reason: str
    """The reason of the error that prevents the export; "" = the offsets are written."""


class _Due(NamedTuple):
    """An offset to write for a share-partition, if the changes of its incarnation are stored."""

    actor: PartitionActor
    generation: int
    offset: CommittedOffset


@dataclass
class _Export:
    """The export of one share group under one name."""

    name: str
    known: dict[Place, CommittedOffset] = field(default_factory=dict)
    """The offsets in Kafka, by the last look and the writes since."""
    written_s: dict[Place, float] = field(default_factory=dict)
    looked_s: float = -math.inf
    next_s: float = -math.inf
    delay_s: float = 0.0
    """The last wait after a failure."""
    reason: str | None = None
    """See `ExportFigures`; None = not tried yet."""
    logged: str = ""
    """The cause of the last failure, which is said once."""


class OffsetsExporter:
    """Exports the offsets of a coordinator's share groups."""

    def __init__(self, context: Context, groups: Mapping[str, GroupActor]) -> None:
        self._context = context
        self._groups = groups
        self._exports: dict[str, _Export] = {}

    def figures(self) -> tuple[ExportFigures, ...]:
        """The outcome by share group; groups that were not tried yet are left out."""
        return tuple(
            ExportFigures(group_id, export.name, export.reason)
            for group_id, export in self._exports.items()
            if export.reason is not None
        )

    async def run(self) -> None:
        """Exports again and again, until cancelled; one group after the other."""
        port = self._context.offsets_export
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(EXPORT_INTERVAL_S)
            self._follow_settings()
            for group_id, export in self._exports.items():
                group = self._groups.get(group_id)
                if group is not None and loop.time() >= export.next_s:
                    await self._try(port, group, export)

    def _follow_settings(self) -> None:
        """A changed name counts as a new one; offsets under a former name stay as they are."""
        former, self._exports = self._exports, {}
        for group_id, group in self._groups.items():
            name = group.config.offsets_export_group
            if name:
                kept = former.get(group_id)
                self._exports[group_id] = kept if kept and kept.name == name else _Export(name)

    async def _try(self, port: OffsetsExport, group: GroupActor, export: _Export) -> None:
        try:
            await self._export(port, group, export)
        except SharecoordError as error:
            self._failed(group.group_id, export, error)
        except Exception as error:
            log.exception("offsets not exported", group=group.group_id)
            self._failed(group.group_id, export, InternalError(repr(error)))

    async def _export(self, port: OffsetsExport, group: GroupActor, export: _Export) -> None:
        if not any(actor.state is ActorState.ACTIVE for actor in group.partitions.values()):
            return
        now_s = asyncio.get_running_loop().time()
        if now_s - export.looked_s >= LOOK_INTERVAL_S:
            await self._look(port, group.group_id, export)
            export.looked_s = now_s
        due = _due(group, export, now_s)
        if due:
            error = await self._context.committed()
            if error is not None:
                raise error
            await _write(port, group, export, due)
        if export.reason != "":
            log.info("offsets are exported", group=group.group_id, export_group=export.name)
        export.reason, export.delay_s, export.logged = "", 0.0, ""

    async def _look(self, port: OffsetsExport, group_id: str, export: _Export) -> None:
        """Reads the offsets that Kafka has under the name.

        Raises:
            InvalidConfigError: Some of it was not written for this share group.
            SharecoordError: As `OffsetsExport.read`.
        """
        found = await port.read(export.name)
        for place in sorted(found):
            mark = METADATA.match(found[place].metadata)
            if mark is None or mark[1] != _quoted(group_id):
                whose = f"share group {mark[1]}" if mark else "somebody else"
                raise invalid_config(
                    "share.offsets.export.group",
                    export.name,
                    f"this consumer group has offsets of {whose}, {place[0]}[{place[1]}] first",
                    fix="Choose another name, or delete that consumer group if nobody needs it",
                )
            found[place] = CommittedOffset(found[place].offset, mark[0])
        export.known = found
        export.written_s = {p: at_s for p, at_s in export.written_s.items() if p in found}

    def _failed(self, group_id: str, export: _Export, error: SharecoordError) -> None:
        """Waits longer after each failure; a failure that needs a person waits a minute at once."""
        first_s = EXPORT_INTERVAL_S if error.retriable else LOOK_INTERVAL_S
        export.delay_s = min(max(first_s, export.delay_s * 2), LOOK_INTERVAL_S)
        export.next_s = asyncio.get_running_loop().time() + export.delay_s
        export.looked_s = -math.inf
        export.reason = error.reason
        # The message while Kafka is away may differ from one time to the next.
        cause = error.reason if error.retriable else error.message
        if cause != export.logged:
            export.logged = cause
            log.warning(
                "offsets not exported",
                group=group_id,
                export_group=export.name,
                reason=error.reason,
                why=error.message,
            )


def _quoted(group_id: str) -> str:
    return json.dumps(group_id, ensure_ascii=False)


def _due(group: GroupActor, export: _Export, now_s: float) -> dict[Place, _Due]:
    """Offsets that Kafka does not have so, or that are a day old."""
    due: dict[Place, _Due] = {}
    for place, actor in group.partitions.items():
        if actor.state is not ActorState.ACTIVE or actor.partition is None:
            continue
        if actor.log.bound.stops_at is not None:
            # It reads only a part of the log, which no offset of a consumer can tell.
            continue
        window = actor.partition.window
        start = window.start_offset
        offset = CommittedOffset(
            consumer_offset(start, window.finished),
            f"sharecoord spso={start} group={_quoted(group.group_id)}",
        )
        age_s = now_s - export.written_s.get(place, -math.inf)
        if export.known.get(place) != offset or age_s >= EXPORT_AGAIN_S:
            due[place] = _Due(actor, actor.generation, offset)
    return due


async def _write(
    port: OffsetsExport, group: GroupActor, export: _Export, due: Mapping[Place, _Due]
) -> None:
    """Writes offsets whose changes are stored, in bounded requests, unless the name changed."""
    places = [place for place, d in due.items() if d.actor.generation == d.generation]
    for start in range(0, len(places), WRITE_PARTITIONS_MAX):
        if group.config.offsets_export_group != export.name:
            return
        part = {p: due[p].offset for p in places[start : start + WRITE_PARTITIONS_MAX]}
        written = await port.write(export.name, part)
        now_s = asyncio.get_running_loop().time()
        for place in written:
            export.known[place] = part[place]
            export.written_s[place] = now_s
