"""Who speaks, what they may do, and what is written down of it. No protocol is known here."""
