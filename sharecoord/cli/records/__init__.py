"""Commands about records: in flight, consumed, replayed, dead letters."""
