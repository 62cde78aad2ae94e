"""Simulation of one group under other settings: docs/what-if.md."""
