"""sharecoord: share groups (queue semantics, KIP-932) for any Apache Kafka cluster."""

__version__ = "0.1.0"
