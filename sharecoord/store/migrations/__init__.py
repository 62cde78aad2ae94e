"""Alembic migrations of the store. One file per revision in `versions`, in order of name.

A revision says `needs_downtime = True` when an older release cannot work on the new schema; it is
then run by an operator only. All others run when a coordinator opens the store.
"""
