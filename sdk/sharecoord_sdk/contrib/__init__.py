"""What joins the SDK to libraries that it does not need itself; each module names its extra."""
