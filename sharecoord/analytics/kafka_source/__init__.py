"""The topic of events as a source of Spark: `format("sharecoord")`, see docs/fairness.md.

The only place of analytics that uses confluent-kafka. `options` and `planning` need neither,
`client` needs confluent-kafka, `decode` pyarrow, `source` pyspark; these three are imported when
they are used.
"""
