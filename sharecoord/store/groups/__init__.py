"""Groups, members, and what operators do to share-partitions under traffic."""
