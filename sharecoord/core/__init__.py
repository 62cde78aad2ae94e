"""Pure decisions: standard types in, decisions out. No clock, no await, no log, no random.

The rooms import each other in one direction, from the bottom: `dispatch` (who gets how much),
`window` (the ranges in flight), `order` (order by key), `partition` (the state machine of a
share-partition) beside `letters` (dead letters), and `fleet` (what coordinators say to each other).
Below the rooms are `spans` (arithmetic on ranges of offsets), `states` (the table of legal moves)
and `limits`; `changes` names what is stored and replayed.
"""
