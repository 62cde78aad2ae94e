"""The memory limit: what counts, how much each group may take, what happens at the limit."""
