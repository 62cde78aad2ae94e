"""Bridges to libraries that the SDK does not need itself; each module names its extra."""
