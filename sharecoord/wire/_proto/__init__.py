"""Generated stubs; see `make proto`."""
