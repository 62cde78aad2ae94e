"""Alerts on closed windows of the streaming fairness job: rules, their state, where they go."""
