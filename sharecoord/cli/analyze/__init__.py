"""Commands that run Spark jobs on the event log."""
