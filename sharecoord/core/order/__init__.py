"""Order by key: the records of a key that may go out now, and the member that may get them."""
