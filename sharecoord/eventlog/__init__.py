"""The event log: its schema, its rollups, and what a decision means in it. No Arrow, no Spark."""
