"""Failures of records, how often they happen and what they cost: definitions in docs/poison.md."""
