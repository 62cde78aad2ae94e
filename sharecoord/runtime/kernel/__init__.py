"""The base of all rooms of the runtime: time, group commit, effects, tasks, memory budgets."""
