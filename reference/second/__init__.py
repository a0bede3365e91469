"""The second formulation: every operator again, in NumPy float64, by another algorithm.

A reference that is wrong makes every verdict wrong, so nothing here shares code, library or algorithm with
``attnoracle.reference``: loops instead of batched products, streaming instead of log-sum-exp, complex numbers instead
of rotations written out. It is slow, small, and used by tests alone. Arguments are NumPy arrays with the names, shapes
and meaning of the first formulation; results are float64 (indices int32).
"""
