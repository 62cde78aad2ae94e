"""How long locks are held, and which duration would fit: definitions in docs/locks.md."""
