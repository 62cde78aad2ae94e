"""Dead letters as values: their form, filters, marks, lanes, and when so many are a flood."""
