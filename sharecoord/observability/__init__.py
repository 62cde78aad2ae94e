"""Logs of a process, and a standard error that never blocks."""
