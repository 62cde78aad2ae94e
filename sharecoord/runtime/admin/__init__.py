"""The commands of operators, one file for each kind; no protocol is known here."""
