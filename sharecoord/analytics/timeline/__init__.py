"""Timeline: the whole story of one record, one key or one member."""
