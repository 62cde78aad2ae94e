"""The ranges in flight of one share-partition, with their states and counts."""
