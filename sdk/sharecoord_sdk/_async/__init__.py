"""The asyncio shell: grpc.aio, channels shared by the consumers of a loop, no rules."""
