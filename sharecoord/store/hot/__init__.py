"""The hot path: claims, loads and group commits."""
