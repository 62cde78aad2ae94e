"""See docs/architecture.md for what lives in `wire`."""
