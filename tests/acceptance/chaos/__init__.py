"""Helpers of the fault tests: worker processes with ledgers, a verdict on them, a TCP proxy."""
