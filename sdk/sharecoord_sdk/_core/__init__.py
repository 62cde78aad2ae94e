"""The rules of the SDK, without threads, clocks or grpc: messages and times in, messages out."""
