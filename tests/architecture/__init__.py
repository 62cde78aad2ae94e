"""Rules about the repository itself: shape of the code, imports, promises, and its house."""
