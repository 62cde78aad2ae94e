"""Types, errors and calls that both admin clients share; no connection, no waiting."""
