"""Reads for people: committed state."""
