"""Dialects: one module per database. Modules of servers are imported by the factory alone."""

from __future__ import annotations

from sharecoord.store.dialects.base import ALONE, READ_ONLY, Dialect
from sharecoord.store.dialects.sqlite import SqliteDialect

__all__ = ["ALONE", "READ_ONLY", "Dialect", "SqliteDialect"]
