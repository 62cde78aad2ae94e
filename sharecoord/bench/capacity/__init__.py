"""Costs of a coordinator per record, member, share-partition and group; rows of its store."""
