"""What the two admin clients share: types, errors and calls; no connection, no waiting."""
