"""One member at this coordinator: its session, its credit, and its channel."""
