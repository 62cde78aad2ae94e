"""Decisions and messages of a fleet: placement, lent credit, lock books."""
