"""`sharecoord bench run` and `compare`: any combination of settings, its folder and its page."""
