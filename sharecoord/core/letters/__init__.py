"""Dead letters as values: their form, filters, marks, lanes, and the flood breaker."""
