"""What every room of the runtime stands on: time, group commit, effects, endless loops."""
