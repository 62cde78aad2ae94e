"""Commands about a coordinator: the process, its settings, its store, its event log."""
