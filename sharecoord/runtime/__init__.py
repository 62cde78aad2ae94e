"""The asyncio shell around the core: actors, group commit, sessions, dispatch, recovery.

Everything here runs on one loop; the store is called from one thread of its own.
"""
