"""What differs between databases, one file each. Servers are imported by the factory alone."""

from __future__ import annotations

from sharecoord.store.dialects.base import ALONE, LOCK_TIMEOUT_MS, READ_ONLY, Dialect
from sharecoord.store.dialects.sqlite import SqliteDialect

__all__ = ["ALONE", "LOCK_TIMEOUT_MS", "READ_ONLY", "Dialect", "SqliteDialect"]
