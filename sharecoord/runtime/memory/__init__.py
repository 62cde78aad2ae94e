"""The memory limit: the use of memory, the parts of groups, the measures at the limit."""
