"""The dimensional benchmark: every combination of the given values, measured side by side."""
