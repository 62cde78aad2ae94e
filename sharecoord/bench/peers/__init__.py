"""Peers that are no Python libraries: programs that fill the same board and the same samples."""
