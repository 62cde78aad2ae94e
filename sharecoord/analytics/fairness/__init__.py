"""Who got what, and was it fair: definitions in docs/fairness.md."""
