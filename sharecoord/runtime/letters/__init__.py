"""Dead letters in their topics: found again, redriven, discarded; and those without a group."""
