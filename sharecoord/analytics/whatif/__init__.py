"""What would happen under other settings: a simulation of one group (docs/what-if.md)."""
