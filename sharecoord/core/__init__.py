"""Pure decisions: standard types in, decisions out. No clock, no await, no log, no random.

`share_partition` decides, `window` holds, `changes` names what is stored and replayed,
`states` is the table of legal moves.
"""
