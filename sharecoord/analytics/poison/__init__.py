"""What fails, how often, and what it costs: definitions in docs/poison.md."""
