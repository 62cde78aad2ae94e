"""Several coordinators: who is there, who owns what, and the members of other coordinators."""
