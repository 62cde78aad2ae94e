"""The report: what all jobs found, on one page."""
