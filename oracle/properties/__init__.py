"""Properties: relations that a right kernel keeps between answers of its own, checked without a right answer.

``table`` lists them, ``run`` puts an implementation to them. A property calls the implementation on inputs and on
changed inputs and compares the two; the reference's answer is never looked at, so a mistake that the reference and a
kernel share is seen as well as any. Bitwise where nothing that is computed changes and the contract declares runs
repeatable; otherwise within the sum of what rounding may do to either, by the declared formats (``budgets``).
"""
