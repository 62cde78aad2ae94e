"""Values of records as types: inside."""
