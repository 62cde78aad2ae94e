"""Benchmark against peers that are measured in the same run: drivers, plans, report."""
