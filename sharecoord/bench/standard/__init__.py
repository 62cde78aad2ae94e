"""`sharecoord bench --plan`: the plans with targets, whose figures stand in the README."""
