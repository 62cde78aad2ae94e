"""The synchronous shell: one reader thread per consumer, no rules."""
