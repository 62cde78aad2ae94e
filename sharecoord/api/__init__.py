"""Services for clients: the gRPC server with its methods. No rules of share groups are here."""
