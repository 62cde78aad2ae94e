"""Alerts on closed windows of the streaming fairness job: rules, state and delivery."""
