"""Runs the migrations from a stored revision to the one of this release."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection

from sharecoord.errors import StoreVersionError


def upgrade_schema(
    connection: Connection,
    *,
    where: str,
    scripts: Path,
    head: str,
    revision: str,
    release: str,
    may_need_downtime: bool,
) -> None:
    """Upgrades inside the connection's transaction; arguments as in `schema.prepare_schema`.

    `release` is the one that wrote the schema last, "" when it is not known.

    Raises:
        StoreVersionError: `revision` is not one of ours, or a migration needs an operator.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    directory = ScriptDirectory.from_config(config)
    try:
        missing = list(directory.iterate_revisions(head, revision))
    except (CommandError, RevisionError):
        raise StoreVersionError(
            f"{where} has schema {revision}, written by sharecoord {release or '(unknown)'}; this "
            f"version knows schemas up to {head}. Run the version that wrote it, or a newer one"
        ) from None
    waiting = [step.revision for step in missing if getattr(step.module, "needs_downtime", False)]
    if waiting and not may_need_downtime:
        raise StoreVersionError(
            f"{where} has schema {revision}; migration {', '.join(waiting)} cannot run beside an "
            "older release. Stop all coordinators, then run: sharecoord store migrate"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, head)
