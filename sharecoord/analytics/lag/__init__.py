"""How far behind, since when, and why: definitions in docs/lag.md."""
