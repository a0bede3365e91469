"""What outlives a run: every verdict over time, the failures that are accepted, and where a killed run had got to.

``history`` is an SQLite file of verdicts, ``ledger`` a list of known findings with a date each, ``state_file`` the
lines that the journals of the commands (``cli/journal.py``, ``audit/journal.py``, ``campaign/corpus.py``) go on from.
"""
