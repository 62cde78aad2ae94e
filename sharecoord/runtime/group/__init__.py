"""One share group: its members and their sessions, its topics, its settings, and who gets what."""
