"""Requests that go on to Kafka's brokers (`kafka.port.passthrough`)."""
