"""Search with a budget: cases drawn from the whole space, guided by what has not been seen and by what came closest.

``space`` draws, ``classes`` says what a case covers, ``guide`` chooses, ``corpus`` remembers on disk, ``night`` runs it
all on an engine, ``findings`` makes one line of many failures and ``cause`` looks into each.
"""
