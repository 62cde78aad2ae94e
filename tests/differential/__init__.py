"""The same scripts on Kafka's own share groups and here; and where the two differ on purpose."""
