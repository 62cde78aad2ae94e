"""The facade over confluent-kafka: clients, topics, dead letters, committed offsets, events."""
