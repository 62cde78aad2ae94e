"""Dialects: one module per database. Modules of servers are imported by the factory alone."""

from __future__ import annotations

from sharecoord.store.dialects.base import ALONE, LOCK_TIMEOUT_MS, READ_ONLY, Dialect
from sharecoord.store.dialects.sqlite import SqliteDialect

__all__ = ["ALONE", "LOCK_TIMEOUT_MS", "READ_ONLY", "Dialect", "SqliteDialect"]
