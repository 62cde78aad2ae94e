"""Figures of the whole process for health, metrics and the event log."""
