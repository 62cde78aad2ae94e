"""Event logs of any size with planted findings, to try jobs on."""
