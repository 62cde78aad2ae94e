"""Producing to Kafka, in a process beside the coordinator: dead letters, and exported offsets."""
