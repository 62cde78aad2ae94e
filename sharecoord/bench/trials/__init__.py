"""Measurements with stores that are no runs of a driver: transactions, recovery, restart."""
