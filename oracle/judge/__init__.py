"""The verdict's arithmetic: what may an implementation with this contract return, and does it?

One module an idea; nothing here runs an implementation, ``oracle/check.py`` does::

    attention, indexer, topk, merge      a judge for each family of operators; ``attention_call`` cuts calls into chunks
    moments, budget, bounds              what the reference says of a chunk, what the contract allows there, tail bounds
    state, tally, evidence               what was seen, gathered chunk by chunk
    conclusion, findings                 from there to p-values, proofs and sentences
    layouts, exact, stored_nan           what has to be right bit by bit
    conventions, readings, misreadings   under which other convention a wrong answer would be right
    power, calibration                   what the input could not tell; how far eager attention is off
    formats, units                       spacing of number formats; bases of logarithms
"""
