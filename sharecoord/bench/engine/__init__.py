"""The one engine of the benchmark: cells, load processes, trials and their figures."""
