"""What a coordinator costs: per record, member, share-partition and group; rows of its store."""
