"""What the coordinators of a fleet decide and say: placement, lent credit, lock books."""
