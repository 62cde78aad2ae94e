"""The benchmark: this project beside its peers, measured in the same run on the same broker."""
