"""Pure decisions: standard types in, decisions out. No clock, no await, no log, no random.

`share_partition` decides (with `acquire`, `outcomes`, `ordering` and `chains`), `decisions` are its
words, `window` holds, `changes` names what is stored and replayed, `states` is the table of legal
moves, `invariants` checks it all, `fair_share` splits and measures.
"""
