"""The verdict's arithmetic: what may an implementation with this contract return, and does it?

One module an idea: ``bounds`` (tail bounds), ``moments`` (what the reference says about one chunk), ``budget`` (what
the contract allows there), ``tally`` (what was seen), and one judge an operator family: ``attention``, ``indexer``,
``topk``, ``merge``. Nothing here runs an implementation; ``oracle/check.py`` does.
"""
