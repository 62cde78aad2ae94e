"""Tools of `sharecoord store`: check, migrate, back up, restore."""
