"""Connections of the Kafka port: how they come, who is at their other end, how they are ended."""
