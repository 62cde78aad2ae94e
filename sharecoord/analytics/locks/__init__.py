"""Time for which locks are held, and the duration that would fit: definitions in docs/locks.md."""
