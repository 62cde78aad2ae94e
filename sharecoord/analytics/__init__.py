"""Jobs on the event log (Spark): see docs/fairness.md and docs/architecture.md.

Importing a `job`, `settings` or `verdict` is cheap, and so are `jobs`, `session` and `frames`. What
works on frames (`transform`, `trend`, `rows`, `census`, `measures`, `attempts`, `names`) needs
pyspark at import time, and is imported by the jobs when they run.
"""
