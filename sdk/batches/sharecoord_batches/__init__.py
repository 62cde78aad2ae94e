"""Opens what Kafka's brokers send: batches of records, and the messages of old formats."""
