"""The actor of a share-partition: its log, its payloads, the books that ride on its commits."""
