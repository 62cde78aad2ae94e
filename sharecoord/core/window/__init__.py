"""The ranges in flight of one share-partition: their states, where they lie, how many fit."""
