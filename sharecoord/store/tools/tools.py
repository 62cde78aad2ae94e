"""Tools of `sharecoord store`, for the database that a URL names."""

from __future__ import annotations

from pathlib import Path

from sharecoord.errors import InvalidConfigError
from sharecoord.store.factory import make_store
from sharecoord.store.sql_store import SqlStore
from sharecoord.store.tools.access import Migration, StoreAccess
from sharecoord.store.tools.backup import backup_store, restore_store
from sharecoord.store.tools.backup_file import BackupHeader
from sharecoord.store.tools.check import CheckReport, check_store


class StoreTools:
    """Tools for one database; nothing is touched before a method is called."""

    def __init__(self, url: str, *, lock_timeout_ms: int) -> None:
        """As `factory.make_store`.

        Raises:
            InvalidConfigError: The URL is malformed, not supported, or has nothing to keep.
        """
        store = make_store(url, lock_timeout_ms=lock_timeout_ms)
        if not isinstance(store, SqlStore):
            raise InvalidConfigError(
                f"store: {url} ends with its process: there is nothing to check or to keep. Give "
                "--store the URL of a database"
            )
        self.access = StoreAccess(store._dialect, name=store.name)

    @property
    def name(self) -> str:
        """How messages call the store; without password."""
        return self.access.name

    def check(self) -> CheckReport:
        """See `check.check_store`."""
        return check_store(self.access)

    def backup(self, path: Path, *, replace: bool) -> BackupHeader:
        """See `backup.backup_store`."""
        return backup_store(self.access, path, replace=replace)

    def restore(self, path: Path, *, replace: bool, other_cluster: bool) -> BackupHeader:
        """See `backup.restore_store`."""
        return restore_store(self.access, path, replace=replace, other_cluster=other_cluster)

    def migrate(self) -> Migration:
        """See `StoreAccess.migrate`."""
        return self.access.migrate()
