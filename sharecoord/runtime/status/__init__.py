"""What watchers, the event log and members are told of what the runtime did."""
