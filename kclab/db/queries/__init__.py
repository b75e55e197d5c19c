"""Questions that the command line, the terminal app and the report ask of a store.

Plain sqlite3 over a read-only connection (`Store.read()`); answers are dataclasses or dicts whose
values are the database's own: times in microseconds UTC, sizes in bytes, JSON decoded.
"""
