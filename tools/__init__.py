"""Tools of the repository, run by the Makefile; none is shipped."""
