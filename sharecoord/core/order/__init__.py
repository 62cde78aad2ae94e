"""Order by key: which record of a key may go out now, and to whom."""
