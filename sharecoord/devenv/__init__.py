"""Brokers, databases and coordinators as child processes, for tests, benchmarks and the demo."""
