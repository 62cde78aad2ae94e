"""See docs/architecture.md for what lives in `grpc`."""

import os

# Read by grpc when it is imported. Its own lines, two for each handshake that fails, come from C
# code that waits for standard error; a value that the user set is kept.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
