"""The report: the results of all jobs on one page."""
