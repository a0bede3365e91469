"""What is judged: fast implementations of the operators, and the contract each one declares.

Imports nothing of ours outside this package, the references above all: an implementation that shares code with the
reference shares its mistakes.
"""
