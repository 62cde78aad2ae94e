"""Plans: which consumers are run over which records, in which order, and what is promised."""
