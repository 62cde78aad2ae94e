"""Lag of share-partitions, since when they have it, and why: definitions in docs/lag.md."""
