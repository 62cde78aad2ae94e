"""Tests of sharecoord; one folder per suite."""
