"""What outlives a run: verdicts as JSON and over time, failures that are accepted, and where a killed run had got to.

``verdict_json`` writes a verdict and reads it back, ``history`` is an SQLite file of many, ``ledger`` a list of known
findings with a date each, ``state_file`` the lines that the journals of the commands (``cli/journal.py``,
``audit/journal.py``, ``campaign/corpus.py``) go on from.
"""
