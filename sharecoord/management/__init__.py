"""The HTTP server for health probes and metrics."""
