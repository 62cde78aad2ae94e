"""Dead letters: sent to their topic, found there again, redriven, and counted against a flood."""
