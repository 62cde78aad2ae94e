"""`sharecoord demo`: many workers on one partition, two kill -9, and nothing is lost.

`main.run` is the entry. `director` plays the scenes on the processes of `stage`; workers write
what they do into ledgers of their own (`ledger`), and `judge` decides from these alone, without
asking the coordinator, whether a record was lost.
"""
