"""The Kafka port: unmodified share consumers of every language are members like all others.

No rules are here. A connection reads requests one after the other and answers them in order; each
API has a function that turns its request into calls of the runtime, and their outcome into Kafka's
answer. Epochs, sessions and error codes are those of a broker (KIP-932).
"""
