"""Fairness between the members of a group: definitions in docs/fairness.md."""
