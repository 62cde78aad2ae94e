"""Reading from Kafka: records as they come, ranges read again, scans for people."""
