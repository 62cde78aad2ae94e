"""The share-partition state machine: every decision about the records of one share-partition."""
