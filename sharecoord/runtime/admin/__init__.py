"""What operators ask for: one file for each kind of command; no protocol is known here."""
