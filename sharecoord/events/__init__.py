"""The writers of the event log, to Parquet files or a Kafka topic, and the care of its folder."""
