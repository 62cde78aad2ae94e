"""The gRPC server and its services: members, operators, and the other coordinators of a fleet."""

import os

# Read by grpc when it is imported. Its own lines, two for each handshake that fails, come from C
# code that waits for standard error; a value that the user set is kept.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
