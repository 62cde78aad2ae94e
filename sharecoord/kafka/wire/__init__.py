"""A connection of our own to Kafka's brokers: for reading records as the batches that they are."""
