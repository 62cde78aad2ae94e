"""One member as this coordinator knows it: its session, its credit, and the way to it."""
