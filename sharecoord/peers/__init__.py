"""Links of a gateway to the owners in a fleet, over gRPC."""
