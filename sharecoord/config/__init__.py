"""Settings of a process and of groups: their tables, their sources, readers of their texts."""
