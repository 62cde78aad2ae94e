"""Readers of values that need packages of their own: `avro`."""
