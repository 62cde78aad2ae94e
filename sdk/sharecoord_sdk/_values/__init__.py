"""Converters of values into types."""
